"""Scheduled runs: each input row is in the table once, whatever comes late, changes, goes, grows or is killed."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.etl import plan_etl
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.commit.lease import hold_lease
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, FingerprintError, LeaseError, OutputError, SourceError
from testing.pipeline.fakes import FakeEngine, InlineExecutor
from testing.pipeline.faults import FaultyStorage, Moment
from testing.pipeline.scheduled_table import ScheduledTable, prompts

MakeTable = Callable[..., ScheduledTable]


@pytest.fixture
def make(tmp_path: Path, qwen3_folder: Path) -> MakeTable:
    numbers = iter(range(1000))
    return lambda **fields: ScheduledTable(str(tmp_path / str(next(numbers))), qwen3_folder, **fields)


@pytest.fixture
def table(make: MakeTable) -> ScheduledTable:
    """Two days are done: of the first one two files that share a unit."""
    table = make()
    table.put("dt=2026-11-20/a.parquet", prompts(0, 2))
    table.put("dt=2026-11-20/b.parquet", prompts(10, 1))
    table.put("dt=2026-11-21/a.parquet", prompts(20, 6))
    assert table.run().outcome == "done"
    return table


class NoWork(InlineExecutor):
    """Fails if anything is started."""

    def session(self) -> Any:
        raise AssertionError("a session was begun")


def test_a_run_processes_what_no_run_before_it_did_and_a_late_file_too(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    assert [*table.run().intake.new] == ["dt=2026-11-22/a.parquet"]
    table.put("dt=2026-11-19/late.parquet", prompts(40, 3))
    result = table.run()
    assert [*result.intake.new] == ["dt=2026-11-19/late.parquet"]
    assert result.summary is not None
    assert result.summary.session.rows == 3
    table.check(tmp_path)


def test_with_nothing_new_nothing_is_started_or_written(table: ScheduledTable) -> None:
    before = table.storage.sizes(".")
    result = table.run(NoWork())
    assert (result.outcome, result.summary) == ("nothing new", None)
    assert table.storage.sizes(".") == before, "not even a lease"


@pytest.mark.parametrize("fault", ["changed", "gone"])
def test_a_changed_or_vanished_file_is_an_error_that_names_it(table: ScheduledTable, fault: str) -> None:
    if fault == "changed":
        table.put("dt=2026-11-21/a.parquet", prompts(50, 6))
    else:
        table.remove("dt=2026-11-21/a.parquet")
    rows = table.rows()
    with pytest.raises(SourceError, match=r"'dt=2026-11-21/a\.parquet': .*on_changed='reprocess'"):
        table.run()
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    with pytest.raises(SourceError, match=r"'dt=2026-11-21/a\.parquet'"):
        table.run(NoWork())
    assert table.rows() == rows


def test_ignored_changes_leave_the_rows_as_they_were(table: ScheduledTable) -> None:
    rows = table.rows()
    table.put("dt=2026-11-21/a.parquet", prompts(50, 2))
    table.remove("dt=2026-11-20/a.parquet")
    result = table.run(NoWork(), on_changed="ignore")
    assert result.outcome == "nothing new"
    assert "2 changed or vanished files ignored" in result.describe()
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    assert table.run(on_changed="ignore").outcome == "done"
    later = [row for row in table.rows() if row["dt"] != "2026-11-22"]
    assert later == rows


def test_a_changed_file_is_replaced_and_a_vanished_one_removed(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-20/b.parquet", prompts(60, 9))
    table.remove("dt=2026-11-20/a.parquet")
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    result = table.run(on_changed="reprocess")
    assert result.summary is not None
    assert result.summary.session.rows == 9 + 5, "the file that did not change is copied"
    assert result.summary.total.rows == 6 + 9 + 5, "the rows of the old content do not count any more"
    table.check(tmp_path)
    assert table.run(NoWork()).outcome == "nothing new"


def test_all_rows_of_a_publication_may_go(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    table.run()
    for name in [name for name in table.files if "2026-11-22" not in name]:
        table.remove(name)
    assert table.run(on_changed="reprocess").intake.files == ()
    table.check(tmp_path)


def test_rows_can_be_removed_where_the_table_does_not_keep_the_prompts(make: MakeTable) -> None:
    table = make(columns=["topic"])
    table.put("a.parquet", prompts(0, 2, topic="a"))
    table.put("b.parquet", prompts(5, 6, topic="b"))
    table.run()
    table.remove("b.parquet")
    table.run(on_changed="reprocess")
    assert {row["topic"] for row in table.rows()} == {"a"}
    table.check_whole()


def test_failed_rows_are_done_again_with_their_file(make: MakeTable, tmp_path: Path) -> None:
    table = make(prompt_column=None)
    bad = [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]
    table.put("a.parquet", bad)
    table.put("b.parquet", [{"prompt_token_ids": [8 + i]} for i in range(6)])
    table.run()
    assert [row["finish_reason"] for row in table.rows()].count("error") == 1
    assert table.run(NoWork()).outcome == "nothing new", "a failed row is processed too"
    result = table.run(InlineExecutor(engine=lambda: FakeEngine(bans=False)), retry_failed=True)
    assert [*result.intake.targets] == ["a.parquet"]
    assert all(row["finish_reason"] == "stop" for row in table.rows())
    assert len(table.rows()) == 16
    assert read(table.config.run.output, table="dead_letters", format="arrow").num_rows == 0
    table.check_whole()
    assert table.run(NoWork(), retry_failed=True).outcome == "nothing new"


def test_damaged_parts_are_made_again(table: ScheduledTable, tmp_path: Path) -> None:
    part = next(Path(table.config.run.output).glob("data-*/*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    with pytest.raises(DamagedError, match=r"--repair"):
        table.run()
    assert table.run(repair=True).outcome == "done"
    table.check(tmp_path)


@pytest.mark.parametrize("again", ["changed", "failed rows"])
def test_at_every_moment_readers_see_the_old_rows_or_the_new_ones(make: MakeTable, again: str) -> None:
    """While the folder of the old ones makes way for that of the new ones they see neither, and an error says so."""
    table = make()
    table.put("a.parquet", [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}])
    table.put("b.parquet", [{"prompt_token_ids": [8 + i]} for i in range(6)])
    table.run()
    before, seen = table.rows(), []
    fields: dict[str, Any] = {"retry_failed": True}
    if again == "changed":
        table.put("a.parquet", [{"prompt_token_ids": [9]}, {"prompt_token_ids": [7]}])
        fields = {"on_changed": "reprocess"}

    def look(moment: Moment) -> None:
        try:
            seen.append(table.rows())
        except OutputError as error:  # "Read again", as nothing is damaged
            seen.append([] if "Read again" in str(error) else [{"error": str(error)}])

    healthy = InlineExecutor(engine=lambda: FakeEngine(bans=False))
    table.run(healthy, storage=FaultyStorage(table.storage, look), **fields)
    states = [rows for rows, _ in itertools.groupby(seen)]
    assert states == [before, [], table.rows()], [len(rows) for rows in states]
    assert before != table.rows()


def test_small_files_share_units_within_a_folder_and_a_version_only(make: MakeTable, tmp_path: Path) -> None:
    table = make()
    for day in (20, 21):
        for name in "abc":
            table.put(f"dt=2026-11-{day}/{name}.parquet", prompts(day * 10 + ord(name), 1))
    summary = table.run().summary
    assert summary is not None
    assert summary.session.units == 2, "one for each folder"
    table.put("dt=2026-11-20/b.parquet", prompts(0, 1))
    table.put("dt=2026-11-20/d.parquet", prompts(5, 1))
    result = table.run(on_changed="reprocess", backfill=("2026-11-20", "2026-11-20"))
    assert {key[-9] for key in result.intake.targets} == {"a", "b", "c"}
    assert result.summary is not None
    assert result.summary.session.units == 2, "replacements and new rows do not share one"
    table.check(tmp_path)


@pytest.mark.parametrize(
    ("fields", "done"),
    [
        ({"since": "2026-11-20"}, {"20", "21", "22"}),
        ({"until": "2026-11-20"}, {"19", "20"}),
        ({"since": "2026-11-20", "until": "2026-11-21"}, {"20", "21"}),
        ({"backfill": ("2026-11-19", "2026-11-19")}, {"19"}),
        ({"since": "2026-11"}, {"19", "20", "21", "22"}),
        ({"until": "2026-11"}, {"19", "20", "21", "22"}),
        ({"since": "2026-12"}, set()),
    ],
)
def test_a_range_of_partitions_is_all_that_is_looked_at(
    make: MakeTable, fields: dict[str, Any], done: set[str]
) -> None:
    table = make()
    for day in range(19, 23):
        table.put(f"dt=2026-11-{day}/a.parquet", prompts(day * 10, 2))
    table.put("undated.parquet", prompts(0, 2))
    result = table.run(**fields)
    assert {key[11:13] for key in result.intake.new} == done
    table.run()
    assert {row["dt"] for row in table.rows()} == {None, *(f"2026-11-{day}" for day in range(19, 23))}
    assert len(table.rows()) == 2 * 2 * 5


def test_a_backfill_does_what_is_missing_of_the_past_and_nothing_else(make: MakeTable, tmp_path: Path) -> None:
    table = make()
    for day in range(18, 23):
        table.put(f"dt=2026-11-{day}/a.parquet", prompts(day * 10, 2))
    table.run(since="2026-11-21")
    result = table.run(backfill=("2026-11-19", "2026-11-21"))
    assert {key[11:13] for key in result.intake.new} == {"19", "20"}
    assert table.run(NoWork(), since="2026-11-21").outcome == "nothing new"
    assert {key[11:13] for key in table.run().intake.new} == {"18"}
    table.check(tmp_path)


def test_changes_outside_of_the_range_are_left_alone(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-20/a.parquet", prompts(60, 2))
    table.remove("dt=2026-11-21/a.parquet")
    assert table.run(NoWork(), since="2026-11-22").outcome == "nothing new"
    result = table.run(on_changed="reprocess", backfill=("2026-11-20", "2026-11-20"))
    assert {*result.intake.targets} == {"dt=2026-11-20/a.parquet", "dt=2026-11-20/b.parquet"}, "they share a unit"
    assert len([row for row in table.rows() if row["dt"] == "2026-11-21"]) == 12
    table.run(on_changed="reprocess")
    table.check(tmp_path)


def test_young_and_empty_files_wait_for_a_later_run(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    empty = Path(table.root, "in", "dt=2026-11-22", "b.parquet")
    empty.touch()
    result = table.run(NoWork(), settle_seconds=3600)
    assert (result.outcome, result.counts.settling) == ("nothing new", 2)
    table.put("dt=2026-11-21/a.parquet", prompts(50, 6))
    assert table.run(NoWork(), settle_seconds=3600).outcome == "nothing new", "nor is a change seen while it is written"
    old = time.time() - 3700
    for path in Path(table.root, "in").rglob("*.parquet"):
        os.utime(path, (old, old))
    result = table.run(settle_seconds=3600, on_changed="reprocess")
    assert (len(result.intake.files), result.counts.settling) == (2, 1)
    empty.unlink()
    table.check(tmp_path)


def test_a_second_run_says_that_another_one_is_at_work(table: ScheduledTable) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    with hold_lease(table.storage):
        result = table.run(NoWork())
        assert result.outcome == "busy"
        assert "another run is at work" in result.describe()
        with pytest.raises(LeaseError):
            table.run(NoWork(), wait=0.05)
    assert table.run().outcome == "done"


def test_a_second_run_waits_if_it_is_told_to(table: ScheduledTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.etl._POLL_SECONDS", 0.02)
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    holding = hold_lease(table.storage)
    holding.__enter__()
    timer = threading.Timer(0.3, lambda: holding.__exit__(None, None, None))
    timer.start()
    assert table.run(wait=math.inf).outcome == "done"
    timer.join()


def test_what_another_run_did_while_this_one_waited_is_not_done_again(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))

    done = []

    def another(moment: Any) -> None:
        if not done:  # just before this run first writes something
            done.append(table.run().outcome)

    result = table.run(NoWork(), storage=FaultyStorage(table.storage, another))
    assert done == ["done"]
    assert result.outcome == "nothing new"
    table.check(tmp_path)


def test_other_settings_are_refused_and_named(table: ScheduledTable) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    with pytest.raises(FingerprintError, match=r"seed: was 0, is 7"):
        table.run(NoWorkLater(), seed=7)
    assert table.run().outcome == "done", "the refused settings left no trace"


class NoWorkLater(InlineExecutor):
    """May be begun, and must not be asked for units."""

    def run_units(self, job: Any, work: Any) -> Any:
        raise AssertionError("units were run")


def test_a_table_is_kept_by_one_kind_of_run(table: ScheduledTable, make: MakeTable) -> None:
    with pytest.raises(OutputError, match=r"wedlm-batch etl"):
        run_on(NoWorkLater(), table.config.run, table.storage, lambda progress: None)
    other = make()
    other.put("a.parquet", prompts(0, 2))
    run_on(InlineExecutor(), other.config.run, other.storage, lambda progress: None)
    with pytest.raises(OutputError, match=r"wedlm-batch generate"):
        other.run()
    with pytest.raises(OutputError, match=r"--input"):
        verify(table.config.run.output, input=table.config.run.input)


def test_a_table_can_be_begun_anew(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-21/a.parquet", prompts(50, 2))
    result = table.run(mode="new", seed=3)
    assert len(result.intake.new) == 3
    assert len(table.rows()) == 2 * (2 + 1 + 2)
    table.check_whole()


def test_a_lost_list_of_processed_files_is_an_error_and_nothing_is_done_twice(table: ScheduledTable) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    lists = Path(table.config.run.output, "__wedlm", "inputs")
    (only,) = lists.iterdir()
    only.write_bytes(only.read_bytes()[:-20])
    with pytest.raises(DamagedError, match=r"list of input files .* is changed"):
        table.run(NoWork())
    shutil.rmtree(lists)
    with pytest.raises(DamagedError, match=r"is missing"):
        table.run(NoWork())


def test_the_plan_lists_what_a_run_would_do_and_does_nothing(table: ScheduledTable) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    before = table.storage.sizes(".")
    config = EtlConfig(run=table.config.run, on_changed="reprocess")
    assert plan_etl(config).new == ("dt=2026-11-22/a.parquet",)
    assert table.storage.sizes(".") == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"on_changed": "skip"}, "on_changed"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "the first is after the last"),
        ({"since": "2026-11-22", "backfill": ("2026-11-20", "2026-11-21")}, "backfill"),
        ({"settle_seconds": -1}, "settle_seconds"),
        ({"wait": "long"}, "wait"),
        ({"partition_key": "dt="}, "partition_key"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EtlConfig(run=RunConfig(input="in", output="out"), **fields)


@pytest.mark.parametrize("fields", [{"input": "in/*.parquet"}, {"input": [{"prompt": "a"}]}, {"limit": 3}])
def test_what_cannot_be_scheduled_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        EtlConfig(run=RunConfig(**{"input": "in", "output": "out", **fields}))
