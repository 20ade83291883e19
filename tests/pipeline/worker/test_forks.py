"""Child processes of a fork server: the same results, a fresh engine for each, and deaths that cost no start."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.codec import Request, SamplingParams
from pipeline.config import RunConfig
from pipeline.plan.job import Job, resolve_job
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.forks import Forks
from pipeline.worker.load_engine import load_engine
from pipeline.worker.row_isolation import ChildDiedError, NoChildrenError
from testing.pipeline.deadly_engines import DEADLY_TOKEN, NINTH, deadly_row_engine, ninth_row_engine, threaded_engine
from testing.pipeline.fakes import FakeEngine

OTHER_TOKEN = DEADLY_TOKEN + 1


class Raises(FakeEngine):
    def step(self) -> Any:
        raise RuntimeError("device lost")


def raising_engine(job: Job, num_threads: int | None) -> FakeEngine:
    return Raises()


def no_engine(job: Job, num_threads: int | None) -> FakeEngine:
    raise OSError("no such model")


@pytest.fixture
def job(qwen3_folder: Path, tmp_path: Path) -> Job:
    config = RunConfig(input=[{"prompt": "x"}], output=str(tmp_path / "out"), model=str(qwen3_folder))
    storage = LocalStorage(config.output, layout.SCRATCH)
    Path(config.output).mkdir()
    return resolve_job(config, source_of(config, storage), storage)


@pytest.fixture
def forks_of(job: Job) -> Iterator[Callable[..., Forks]]:
    made = []

    def make(load: Any, *note: Any) -> Forks:
        made.append(Forks(lambda: pickle.dumps((job, load)), *note))
        return made[-1]

    yield make
    for forks in made:
        forks.close()


def requests(*tokens: int) -> list[Request]:
    params = SamplingParams(max_tokens=8)
    return [Request(request_id=str(i), prompt_token_ids=(t, 9), params=params, seed=i) for i, t in enumerate(tokens)]


def test_a_child_that_dies_costs_no_start_of_the_engine(forks_of: Callable[..., Forks], job: Job) -> None:
    forks = forks_of(deadly_row_engine)
    assert forks.usable
    first = forks.submit(requests(7, 8)).result()
    for _ in range(5):
        with pytest.raises(ChildDiedError):
            forks.submit(requests(7, DEADLY_TOKEN)).result()
    assert forks.submit(requests(7, 8)).result() == first
    assert len(Path(job.storage.url, "starts.txt").read_text().split()) == 1


def test_each_child_has_a_fresh_engine(forks_of: Callable[..., Forks]) -> None:
    forks = forks_of(ninth_row_engine)
    most = requests(*range(10, 10 + NINTH - 1))
    found = [forks.submit(most).result() for _ in range(3)]
    assert found[0] == found[1] == found[2]
    with pytest.raises(ChildDiedError):
        forks.submit([*most, replace(most[0], request_id="ninth")]).result()


def test_the_error_of_an_engine_that_raises_is_noted(forks_of: Callable[..., Forks]) -> None:
    notes: list[str] = []
    with pytest.raises(ChildDiedError):
        forks_of(raising_engine, notes.append).submit(requests(7)).result()
    assert "RuntimeError: device lost" in notes[0]


@pytest.mark.parametrize("load", [no_engine, threaded_engine])
def test_without_an_engine_of_one_thread_there_are_no_children(load: Any, forks_of: Callable[..., Forks]) -> None:
    forks = forks_of(load)
    for _ in range(2):
        with pytest.raises(NoChildrenError):
            forks.submit(requests(7)).result()
    assert not forks.usable


def test_a_child_generates_what_this_process_generates(forks_of: Callable[..., Forks], job: Job) -> None:
    some = requests(20, 21, 22)
    thread = EngineThread(load_engine(job, None))
    expected = thread.submit(some).result()
    thread.close()
    found = forks_of(load_engine).submit(some).result()
    assert {k: v.token_ids for k, v in found.items()} == {k: v.token_ids for k, v in expected.items()}  # type: ignore[union-attr]


def endless_engine(job: Job, num_threads: int | None) -> FakeEngine:
    return Endless()


class Endless(FakeEngine):
    def step(self) -> Any:
        Path("/proc/self/comm").write_text("endless")
        time.sleep(600)


def test_the_server_and_its_child_end_with_this_process(job: Job) -> None:
    """The server sees that its connection is closed, whatever ended this process."""
    program = (
        "import os, pickle, sys, time; from pipeline.worker.forks import Forks; "
        "Forks(lambda: bytes.fromhex(sys.argv[1])).submit(pickle.loads(bytes.fromhex(sys.argv[2]))); time.sleep(60)"
    )
    arguments = [pickle.dumps(each).hex() for each in ((job, endless_engine), requests(7))]
    path = os.pathsep.join(sys.path)
    owner = subprocess.Popen([sys.executable, "-c", program, *arguments], env={**os.environ, "PYTHONPATH": path})
    try:
        child = wait_for(lambda: descendants(owner.pid, "endless"))
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in child))


def descendants(pid: int, name: str) -> list[int]:
    """The process with this name below another one, and its parent; empty if there is none."""
    for server in children(pid):
        for child in children(server):
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return [server, child]
    return []


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
