"""Sessions that do not start, workers that do not register, clusters that do not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import ray

from pipeline.cluster import session
from pipeline.cluster.private_ray import answers, end_of_logs
from pipeline.cluster.session import Found, ensure_ray
from pipeline.errors import ResourceError


def write_logs(folder: Path, **texts: str) -> None:
    logs = folder / "session_latest" / "logs"
    logs.mkdir(parents=True)
    for age, (name, text) in enumerate(texts.items()):
        path = logs / name.replace("_", ".")
        path.write_text(text)
        os.utime(path, (1000 - age, 1000 - age))


def test_the_end_of_the_logs_is_that_of_the_latest_ones_with_errors_first(tmp_path: Path) -> None:
    write_logs(
        tmp_path,
        raylet_out="started\n",
        worker_err="",
        gcs_err="".join(f"line {i}\n" for i in range(9)) + "gcs(+0x1)\n",
    )
    assert end_of_logs(tmp_path.as_posix(), lines=2) == "gcs.err:\n  line 7\n  line 8\nraylet.out:\n  started"
    assert end_of_logs((tmp_path / "none").as_posix()) == ""


@pytest.mark.parametrize("kind", [RuntimeError, Exception])
def test_a_ray_that_does_not_start_is_an_error_with_the_end_of_its_logs(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**given: Any) -> NoReturn:
        write_logs(tmp_path, raylet_err="no room in shared memory\n")
        raise kind("timed out")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "private_folder", lambda: str(tmp_path))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(ResourceError, match=r"(?s)timed out.*raylet\.err:\n  no room in shared memory"):
        ensure_ray()


@pytest.mark.parametrize("slow_starts", [1, 2])
def test_a_ray_that_starts_too_slowly_is_started_once_more(slow_starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []

    def init(**given: Any) -> None:
        starts.append(given["_system_config"].pop("prestart_worker_first_driver"))
        if len(starts) <= slow_starts:
            raise RuntimeError("timed out")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "end_of_logs", lambda folder: "raylet.err:\n  Timed out waiting for file /tmp/port")
    monkeypatch.setattr(session, "warn_unless_on_loopback", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    if slow_starts == 1:
        assert ensure_ray()
    else:
        with pytest.raises(ResourceError, match="this machine is busy; run the same command again"):
            ensure_ray()
    assert starts == [False, False]


def finder_that_waits_for(path: Path) -> Callable[[Mapping[str, str]], Found]:
    """The function of :func:`session.finder`, begun when there is a file of this path: no worker is quicker."""
    find, name = session.finder(), str(path)

    def wait_and_find(marks: Mapping[str, str]) -> Found:
        import os
        import time

        while not os.path.exists(name):
            time.sleep(0.02)
        return find(marks)

    return wait_and_find


def test_a_worker_that_does_not_register_in_time_is_an_error_or_a_wait_that_is_reported(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    registers = tmp_path / "registers"
    find = finder_that_waits_for(registers)

    def announce(line: str) -> None:
        said.append(line)
        registers.touch()

    monkeypatch.setattr(session, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(session.stages, "announce", announce)
    monkeypatch.setattr(session, "finder", lambda: find)
    with pytest.raises(ResourceError, match="no worker process of this Ray session registered in 0 s"):
        session.start_probe(private=True)()
    session.start_probe()()  # as on a cluster
    assert set(said) == {"waiting for a worker process of the Ray cluster to start; none has registered yet"}


@pytest.mark.parametrize("kind", ["refuses", "is silent", "is no cluster"])
def test_a_cluster_that_does_not_answer_is_an_error_and_not_a_wait(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = "nonsense" if kind == "is no cluster" else f"127.0.0.1:{server.getsockname()[1]}"
    if kind == "refuses":
        server.close()
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(session, "_HEAD_SECONDS", 0.5)
    monkeypatch.setattr(session, "_ASK_SECONDS", 0.5)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with server, pytest.raises(ResourceError, match=rf"RAY_ADDRESS='{address}'.*(has answered|be joined)"):
        ensure_ray()


def test_a_head_answers(cluster: None) -> None:
    assert answers(ray.get_runtime_context().gcs_address, 5.0)
