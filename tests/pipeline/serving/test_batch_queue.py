"""The queue: which batch is due, and how many processes there are."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commit.lease import hold_lease
from pipeline.config import RunConfig
from pipeline.serving.api_objects import Batch, Status, new_batch
from pipeline.serving.batch_queue import Runner, _Child
from pipeline.serving.store import Store


class Ended:
    """A process that ends when it is told to."""

    status: int | None = None

    def poll(self) -> int | None:
        return self.status


class Noted(Runner):
    """Notes the processes that it would start."""

    def __init__(self, store: Store, runs: int = 1) -> None:
        super().__init__(store, RunConfig(input="-", output="."), runs=runs, max_requests=1)
        self.started: list[tuple[str, bool]] = []

    def _start(self, batch: Batch, *, runs: bool) -> None:
        self.started.append((batch.id, runs))
        connection: Any = type("Connection", (), {"close": lambda self: None})()
        self._children[batch.id] = _Child(process=Ended(), connection=connection, runs=runs)  # type: ignore[arg-type]

    def end(self, name: str, status: int = 0) -> None:
        self._children[name].process.status = status  # type: ignore[attr-defined]
        self._reap()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"), {})


def new(store: Store, priority: int = 0, **changes: Any) -> str:
    body = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
            "metadata": {"priority": str(priority)}}  # fmt: skip
    batch = replace(new_batch(body), **{"status": Status.IN_PROGRESS, **changes})
    store.create(batch)
    time.sleep(0.002)
    return batch.id


def test_batches_run_by_priority_and_age_and_begun_ones_first(store: Store) -> None:
    first, second, urgent = new(store), new(store), new(store, priority=3)
    begun = new(store, priority=-5, in_progress_at=1)
    runner = Noted(store)
    for name in (begun, urgent, first, second):
        runner._start_due()
        assert runner.started.pop() == (name, True)
        assert runner.started == []
        store.change(name, lambda own: own.moved(Status.COMPLETED))
        store.settle(name)
        runner.end(name)


def test_batches_are_checked_and_closed_while_another_runs(store: Store) -> None:
    running = new(store, in_progress_at=1)
    runner = Noted(store)
    runner._start_due()
    new(store)
    checked, closed = new(store, status=Status.VALIDATING), new(store, status=Status.CANCELLING)
    runner._start_due()
    runner._start_due()
    assert runner.started == [(running, True), (checked, False)]
    runner.end(checked)
    store.change(checked, lambda own: own.moved(Status.IN_PROGRESS))
    runner._start_due()
    assert runner.started[2:] == [(closed, False)]


def test_a_new_batch_is_checked_and_run_by_one_process_where_there_is_room(store: Store) -> None:
    names = [new(store, status=Status.VALIDATING) for _ in range(2)]
    runner = Noted(store, runs=2)
    runner._start_due()
    assert runner.started == [(name, True) for name in names]


def test_a_process_that_another_server_here_has_left_counts_as_a_run(store: Store) -> None:
    held = new(store, in_progress_at=1)
    waits = new(store)
    runner = Noted(store)
    with hold_lease(store.lease_of(held)):
        runner._start_due()
        assert runner.started == []
    runner._start_due()
    assert runner.started == [(held, True)]
    assert waits not in runner._children


def test_a_batch_that_fails_waits_longer_each_time_and_lets_others_run(store: Store) -> None:
    bad, good = new(store), new(store)
    runner = Noted(store)
    waits = []
    for _ in range(12):
        runner._failures = {name: (count, 0.0) for name, (count, _) in runner._failures.items()}
        runner._start_due()
        runner.end(bad, 1)
        waits.append(runner._failures[bad][1] - time.monotonic())
    assert [round(wait) for wait in waits] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    runner._start_due()
    assert runner.started[-1] == (good, True)
    runner.end(good)
    assert good not in runner._failures


def test_a_damaged_record_does_not_end_the_queue(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    name = new(store)
    store.storage.put(f"queue/{name}/000002.json", b"{")
    runner = Noted(store)
    runner.start()
    time.sleep(0.2)
    store.storage.put(f"queue/{name}/000002.json", store.storage.read(f"queue/{name}/000001.json"))
    runner.wake()
    end = time.monotonic() + 10
    while not runner.started and time.monotonic() < end:
        time.sleep(0.01)
    runner._children.clear()
    runner.stop()
    assert runner.started == [(name, True)]
    assert f"queue/{name}/000002.json: a damaged record" in capsys.readouterr().err
