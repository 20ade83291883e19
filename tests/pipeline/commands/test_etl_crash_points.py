"""A scheduled run that ends at any operation on the output, or is killed: the next one leaves each row there once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Recorder, crash_points
from testing.pipeline.leases import expire_leases
from testing.pipeline.s3 import S3Server
from testing.pipeline.scheduled_table import ScheduledTable, prompts
from testing.repository import ROOT

MakeTable = Callable[[], ScheduledTable]


@pytest.fixture
def prepared(tmp_path: Path, qwen3_folder: Path) -> MakeTable:
    """Tables whose next run has new, changed, vanished and wider files."""
    numbers = iter(range(1000))

    def prepare() -> ScheduledTable:
        table = ScheduledTable(str(tmp_path / str(next(numbers))), qwen3_folder)
        table.put("dt=1/a.parquet", prompts(0, 2))
        table.put("dt=1/b.parquet", prompts(10, 6))
        table.put("dt=1/c.parquet", prompts(20, 1))
        table.run()
        table.put("dt=0/late.parquet", prompts(30, 5, score=1))
        table.put("dt=1/b.parquet", prompts(40, 5))
        table.remove("dt=1/c.parquet")
        return table

    return prepare


def crash_and_go_on(prepared: MakeTable, folder: Path, step: int) -> None:
    """At every ``step``-th crash point. Before some of the next runs there is another file, with a new column."""
    watched, recorder = prepared(), Recorder()
    watched.run(storage=FaultyStorage(watched.storage, recorder), on_changed="reprocess")
    watched.check(folder)
    expected = watched.rows()
    assert len(recorder.moments) > 80
    for number, at in enumerate(crash_points(recorder.moments)[::step]):
        table = prepared()
        with pytest.raises(Killed):
            table.run(storage=FaultyStorage(table.storage, CrashAt(at)), on_changed="reprocess")
        expire_leases(table.storage)
        more = number % 2 == 0
        if more:
            table.put("dt=2/more.parquet", prompts(50, 2, topic="t"))
        done = table.run(on_changed="reprocess").outcome == "done"  # if all was decided, nothing is left to do
        there = [row for row in table.rows() if row["dt"] != 2]
        assert [{k: v for k, v in row.items() if k != "topic"} for row in there] == expected, recorder.moments[at]
        assert len(table.rows()) - len(there) == 4 * more
        table.check_whole(swept=done)
        assert table.run(on_changed="reprocess").outcome == "nothing new"


def test_a_crash_at_any_ninth_crash_point_leaves_all_to_the_next_run(prepared: MakeTable, tmp_path: Path) -> None:
    crash_and_go_on(prepared, tmp_path / "fresh", 9)


@pytest.mark.slow
def test_a_crash_at_any_operation_leaves_all_to_the_next_run(prepared: MakeTable, tmp_path: Path) -> None:
    """Some 50 crashes, about 20 s."""
    crash_and_go_on(prepared, tmp_path / "fresh", 1)


def kill(table: ScheduledTable, boundary: str, *, after: bool) -> None:
    """A scheduled run in a process that is killed there."""
    command = [sys.executable, "-m", "testing.pipeline.killed_schedule", table.place, table.config.run.model, boundary]
    command += [str(int(after)), json.dumps(table.options)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def schedule(table: ScheduledTable, folder: Path) -> None:
    """Days with late files, runs that are killed at different places, and a column that comes in the middle."""
    kills = {1: ("ledger", True), 2: ("publication record", False), 4: ("publication record", True)}
    gained = {}
    for day in range(5):
        if day >= 2:
            gained = {"score": day}
        table.put(f"dt=2026-11-{10 + day}/a.parquet", prompts(100 * day, 6, **gained))
        table.put(f"dt=2026-11-{10 + day}/b.parquet", prompts(100 * day + 10, 1, **gained))
        if day >= 3:
            table.put(f"dt=2026-11-{8 + day}/late-{day}.parquet", prompts(100 * day + 20, 3))
        if day in kills:
            boundary, after = kills[day]
            kill(table, boundary, after=after)
            table.put(f"dt=2026-11-{10 + day}/c.parquet", prompts(100 * day + 30, 2, **gained))
        assert table.run().outcome == "done"
        assert table.run().outcome == "nothing new"
        table.check(folder / str(day))
    assert len(table.rows()) == 2 * (5 * 7 + 2 * 3 + 3 * 2)


@pytest.mark.slow
def test_a_schedule_with_late_files_kills_and_a_new_column(tmp_path: Path, qwen3_folder: Path) -> None:
    schedule(ScheduledTable(str(tmp_path / "table"), qwen3_folder), tmp_path)


@pytest.mark.slow
def test_a_schedule_on_an_object_store(tmp_path: Path, qwen3_folder: Path, s3: S3Server) -> None:
    """About 25 s: some 40 runs and reads, each of hundreds of requests."""
    schedule(ScheduledTable(f"{s3.bucket('schedule')}/table", qwen3_folder, s3.options), tmp_path)
