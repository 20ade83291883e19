"""Counts of a monitor, and its snapshots' stage, rates and end."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import stages
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Actors, ExecutorState, Progress, ResourceSeconds, Snapshot, Stage
from pipeline.types import CommitRecord, Totals


def record(**fields: Any) -> CommitRecord:
    counts = dict.fromkeys(("first_row", "failed_rows", "samples", "prompt_tokens", "staged_bytes"), 0)
    own = {"num_rows": 10, "completion_tokens": 300, "decode_forwards": 100, "rows_forwarded": 600}
    return CommitRecord(
        unit_id="u", file_key="f", data_sha256="", **{**counts, **own, "engine_seconds": 10.0, **fields}
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self.closed: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        self.closed.append(snapshot)


def test_progress_adds_up() -> None:
    seen: list[Progress] = []
    monitor = Monitor(on_progress=seen.append)
    monitor.plan(40, Totals(rows=10, units=1), 3)
    assert seen[0].tokens_per_second == 0
    monitor.add(record())
    now = seen[-1]
    assert (now.done.rows, now.session.rows, now.tokens_per_second) == (20, 10, 30.0)


def test_rows_that_are_generated_again_count_once() -> None:
    monitor = Monitor()
    monitor.plan(10, Totals(), 1)
    before = record(failed_rows=4, completion_tokens=100)
    monitor.add(record(failed_rows=1, rows_again=4), before)
    now = monitor.now()
    assert (now.done.rows, now.session.rows, now.session.completion_tokens) == (10, 4, 200)


def test_failed_rows_that_were_not_corrected_and_rows_done_from_the_beginning_count_as_they_are() -> None:
    before = record(failed_rows=4, completion_tokens=100)
    some = record(failed_rows=3, rows_again=2, completion_tokens=130).since(before)
    assert (some.num_rows, some.failed_rows, some.completion_tokens) == (2, 1, 30)
    whole = record(failed_rows=1, rows_again=10, redone="the staged rows are gone").since(before)
    assert (whole.num_rows, whole.failed_rows, whole.completion_tokens) == (10, 1, 300)


def test_a_second_pass_adds_to_the_session_and_its_seconds() -> None:
    monitor = Monitor()
    monitor.plan(20, Totals(), 2)
    monitor.add(record())
    monitor.plan(20, Totals(rows=10, units=1), 1)  # the second unit's files were damaged
    monitor.add(record(engine_seconds=5.0))
    now = monitor.now()
    assert (now.session.rows, now.seconds, now.done.rows) == (20, 15.0, 20)


def test_the_stage_follows_the_run_and_its_actors() -> None:
    clock, state = Clock(), ExecutorState()
    monitor = Monitor(clock=clock)
    monitor.begin(lambda: state)
    found = [monitor.snapshot().stage]
    clock.now += 2.0
    monitor.plan(100, Totals(), 10)
    for phase in (Stage.STARTING, Stage.LOADING, Stage.COMPILING):
        clock.now += 1.0
        state = ExecutorState(actors=Actors(starting=1, most=1), phase=phase)
        found.append(monitor.snapshot().stage)
    clock.now += 1.0
    state = ExecutorState(actors=Actors(ready=1, most=1))
    found.append(monitor.snapshot().stage)
    state = ExecutorState(actors=Actors(starting=1, most=1))
    found.append(monitor.snapshot().stage)
    clock.now += 4.0
    monitor.enter(Stage.PUBLISHING)
    last = monitor.snapshot()
    assert found == [Stage.PLANNING, Stage.STARTING, Stage.LOADING, Stage.COMPILING, Stage.GENERATING, Stage.GENERATING]
    assert last.stage is Stage.PUBLISHING
    assert last.at == 10.0
    assert last.stages == {Stage.PLANNING: 2.0, Stage.STARTING: 2.0, Stage.LOADING: 1.0, Stage.COMPILING: 1.0,
                           Stage.GENERATING: 4.0, Stage.PUBLISHING: 0.0}  # fmt: skip
    assert sum(last.stages.values()) == last.at


def test_a_snapshot_has_rates_the_end_and_the_price() -> None:
    clock = Clock()
    state = ExecutorState(actors=Actors(ready=2, most=2), used=ResourceSeconds(cpus=7200.0))
    monitor = Monitor(clock=clock, price_per_hour=1.5, output="out", model="tiny")
    monitor.begin(lambda: state)
    monitor.plan(100, Totals(), 10)
    monitor.snapshot()
    for _ in range(4):
        clock.now += 5.0
        monitor.snapshot()
        monitor.add(record())
    found = monitor.snapshot()
    assert (found.recent.rows_per_second, found.recent.tokens_per_second) == pytest.approx((2.0, 60.0))
    assert found.eta is not None
    assert found.eta == pytest.approx(30.0, rel=0.15)
    assert (found.cost, found.share) == (3.0, 0.4)
    monitor.enter(Stage.PUBLISHING)
    clock.now += 100.0
    later = monitor.snapshot()
    assert later.eta is None
    assert later.recent == found.recent, "publishing does not slow generating down"


def test_what_is_announced_is_shown_for_a_minute() -> None:
    clock = Clock()
    monitor = Monitor(clock=clock)
    with monitor.shown():
        stages.announce("waiting for 1 actor for a node with room for 1 GPU")
        assert monitor.snapshot().note.startswith("waiting for 1 actor")
        clock.now += 61.0
        assert monitor.snapshot().note == ""
    stages.announce("over")
    assert monitor.snapshot().note == ""


@pytest.mark.parametrize("fails", [False, True])
def test_observers_are_closed_once_and_see_whether_the_run_came_to_its_end(fails: bool) -> None:
    watcher = Watcher()
    monitor = Monitor([watcher])
    try:
        with monitor.shown():
            monitor.plan(10, Totals(), 1)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert watcher.seen[0].stage is Stage.PLANNING, "the first snapshot comes at once"
    assert [one.stage for one in watcher.closed] == [Stage.STARTING if fails else Stage.DONE]


def test_rounds_of_a_scheduled_run_are_shown_together_and_counted_each_for_itself() -> None:
    monitor = Monitor()
    for rows in (10, 30):
        monitor.begin()
        monitor.plan(rows, Totals(), rows // 10)
        for _ in range(rows // 10):
            monitor.add(record())
    now, shown = monitor.now(), monitor.snapshot()
    assert (now.session.rows, now.seconds, now.total_rows) == (30, 10.0, 30), "the second round"
    assert (shown.session.rows, shown.seconds, shown.total_rows, shown.done.rows) == (40, 20.0, 40, 40)
