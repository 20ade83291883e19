"""A chain in every view: its stages with their rows, from the same monitor that follows a single run."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.progress.figures import format_line
from pipeline.progress.live import frame
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Actors, ExecutorState, Load, Progress, ResourceSeconds, Snapshot, Stage
from pipeline.types import CommitRecord, Totals

NAMES = ("write", "judge")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(rows: int, *, failed: int = 0, forwarded: int = 100) -> CommitRecord:
    return CommitRecord(
        unit_id="u", file_key="f", data_sha256="", first_row=0, num_rows=rows, failed_rows=failed,
        samples=rows - failed, prompt_tokens=0, completion_tokens=50, decode_forwards=10, rows_forwarded=forwarded,
        staged_bytes=0, engine_seconds=1.0,
    )  # fmt: skip


def begun(clock: Clock, seen: list[tuple[str, Progress]] | None = None) -> Monitor:
    """A chain of 10 units of 4 rows, whose second stage may have three times as many rows."""
    monitor = Monitor(
        on_stage=None if seen is None else lambda name, progress: seen.append((name, progress)), chain=NAMES,
        clock=clock, output="out", model="tiny",
    )  # fmt: skip
    monitor.begin(lambda: ExecutorState(actors=Actors(ready=1, most=1)))
    monitor.plan(40, Totals(), 10, stage="write")
    monitor.plan(120, Totals(), 10, stage="judge", estimated=True)
    return monitor


def test_each_stage_is_counted_for_itself_and_a_snapshot_has_the_sums() -> None:
    seen: list[tuple[str, Progress]] = []
    monitor = begun(Clock(), seen)
    monitor.add(record(4, failed=1), stage="write")
    monitor.add(record(3), stage="judge")
    assert [name for name, _ in seen] == ["write", "judge", "write", "judge"]
    assert (monitor.now("write").done.rows, monitor.now("judge").done.rows) == (4, 3)
    found = monitor.snapshot()
    assert (found.done.rows, found.done.failed_rows) == (7, 1)
    assert [(own.name, own.done.rows, own.share) for own in found.chain] == [("write", 4, 0.1), ("judge", 3, 0.1)]


def test_rows_of_a_later_stage_follow_from_its_units_so_far_and_are_exact_at_the_end() -> None:
    monitor = begun(Clock())
    judge = monitor.snapshot().chain[1]
    assert (judge.total_rows, judge.estimated) == (120, True), "the most that there may be"
    for unit, rows in enumerate([9, 11, 0, 12, 8, 10, 7, 13, 10, 9]):
        monitor.add(record(rows), stage="judge")
        if unit == 1:
            assert monitor.snapshot().chain[1].total_rows == 100
    judge = monitor.snapshot().chain[1]
    assert (judge.total_rows, judge.done.rows, judge.estimated, judge.share) == (89, 89, False, 1.0)


def test_the_end_is_estimated_once_every_stage_has_committed() -> None:
    clock = Clock()
    monitor = begun(clock)
    monitor.snapshot()
    monitor.add(record(4), stage="write")
    assert monitor.snapshot().eta is None, "no unit of the second stage is done"
    for _ in range(4):
        clock.now += 1.0
        monitor.snapshot()
        monitor.add(record(4), stage="write")
        monitor.add(record(12), stage="judge")
    eta = monitor.snapshot().eta
    assert eta is not None
    assert eta == pytest.approx(5.5, rel=0.25), "11 of 20 units are left"


def test_a_stage_that_reads_no_row_does_not_hold_the_estimate_back() -> None:
    clock = Clock()
    monitor = begun(clock)
    for _ in range(5):
        clock.now += 1.0
        monitor.snapshot()
        monitor.add(record(4), stage="write")
        monitor.add(replace(record(0, forwarded=0), completion_tokens=0), stage="judge")
    eta, judge = monitor.snapshot().eta, monitor.snapshot().chain[1]
    assert eta is not None
    assert (judge.total_rows, judge.share) == (0, 0.5)


def middle() -> Snapshot:
    """A chain whose second stage goes on, with failures in the first."""
    monitor = begun(Clock())
    for _ in range(10):
        monitor.add(record(4, failed=1), stage="write")
    for _ in range(3):
        monitor.add(record(9), stage="judge")
    return monitor.snapshot()


def test_a_frame_says_what_is_an_estimate_and_which_stage_goes_on() -> None:
    lines = [" ".join(line.strip("━╸╺ ").split()) for line in drawn(middle(), 50).splitlines()]
    assert "✓ write 100% 40 of 40 10 failed" in lines
    assert "● judge 30% 27 of about 90" in lines
    monitor = begun(Clock())
    assert "filtering" not in drawn(monitor.snapshot(), 50)
    monitor.enter(Stage.FILTERING)
    assert "● filtering" in drawn(monitor.snapshot(), 50)


def drawn(snapshot: Snapshot, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), no_color=True)
    console.print(frame(snapshot, console))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_line_ends_with_the_keys_of_each_stage() -> None:
    line = format_line(middle())
    assert line.startswith("progress stage=generating ")
    assert line.endswith(
        " write.rows=40 write.total_rows=40 write.failed=10 judge.rows=27 judge.total_rows=90 judge.failed=0"
    )
    assert [pair.partition("=")[0] for pair in format_line(begun(Clock()).snapshot()).split()] == [
        pair.partition("=")[0] for pair in line.split()
    ]


@pytest.mark.parametrize("width", [20, 70])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_frame_of_a_chain_fits_in_any_width_and_has_every_stage(width: int, encoding: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(width=width, file=file, force_terminal=True, no_color=True, legacy_windows=False)
    console.print(frame(middle(), console))
    file.flush()
    text = file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    lines = [line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in text.splitlines()]
    assert all(cell_len(line) <= width for line in lines if "\x1b" not in line)
    assert "write" in text
    assert "judge" in text
    if width >= 40:
        assert "27 of about 90" in text
        assert "10 failed" in text


def test_executors_of_a_chain_are_added_up() -> None:
    one = ExecutorState(
        actors=Actors(ready=1, most=2), phase=Stage.LOADING, used=ResourceSeconds(cpus=1.0),
        load=Load(actors=1, kv_pages=10, counters={"tokens": 5}),
    )  # fmt: skip
    other = ExecutorState(actors=Actors(starting=1, most=1), load=None)
    both = ExecutorState() + one + other
    assert both.actors == Actors(ready=1, starting=1, most=3)
    assert (both.phase, both.used.cpus) == (Stage.LOADING, 1.0)
    assert both.load == one.load
    assert (one + one).load == Load(actors=2, kv_pages=20, counters={"tokens": 10})
