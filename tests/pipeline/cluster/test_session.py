"""A private session beside a cluster that was started on this machine: the user is told which one it is."""

from __future__ import annotations

import socket

import pytest

from pipeline.cluster.session import _cluster_here


def test_a_cluster_that_answers_is_found_and_one_that_is_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: address)
        assert _cluster_here() == address
    assert _cluster_here() is None, "its address is left over"


@pytest.mark.parametrize("noted", [None, "", "nonsense", "127.0.0.1:port", "[::1"])
def test_what_is_no_address_is_none(noted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: noted)
    assert _cluster_here() is None
