"""Which sockets only processes of this machine reach; a real run's are listed in ``commands/test_run_secrets.py``."""

from __future__ import annotations

import pytest

from testing.pipeline.ray_nodes import serve_cluster
from testing.pipeline.sockets import Listener, listeners


@pytest.mark.slow(reason="a cluster of several nodes: 30 s")
def test_the_nodes_that_tests_start_listen_on_loopback_too() -> None:
    with serve_cluster() as cluster:
        node = cluster.add_node(1)
        seen = set(listeners([*cluster.head.processes(), *node.processes()]))
    assert {s.process for s in seen} >= {"raylet", "gcs_server"}
    assert [s for s in seen if not s.is_on_loopback] == []


@pytest.mark.parametrize(
    ("address", "inside"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", False),
     ("::", False), ("::ffff:0.0.0.0", False), ("10.1.2.3", False)],
)  # fmt: skip
def test_the_check_tells_loopback_from_every_other_address(address: str, inside: bool) -> None:
    assert Listener("p", address, 1).is_on_loopback == inside
