"""Scheduled runs on an input that is odd or changes under them: nothing is overlooked, nothing stops the schedule."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.commands.status import status
from pipeline.errors import SourceError
from pipeline.plan.job import Job
from pipeline.plan.units import Work
from pipeline.types import CommitRecord
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.scheduled_table import ScheduledTable, prompts


@pytest.fixture
def table(tmp_path: Path, qwen3_folder: Path) -> ScheduledTable:
    """Two days are done."""
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=2026-11-20/a.parquet", prompts(0, 2))
    table.put("dt=2026-11-20/b.parquet", prompts(10, 1))
    table.put("dt=2026-11-21/a.parquet", prompts(20, 6))
    table.run()
    return table


def empty(table: ScheduledTable, name: str) -> None:
    """A file of no bytes in the place of one."""
    Path(table.root, "in", name).write_bytes(b"")
    table.files.pop(name, None)


class Meanwhile(InlineExecutor):
    """Does something to the input while units run, before or after them."""

    def __init__(self, act: Callable[[], Any], *, first: bool = False) -> None:
        super().__init__()
        self._act, self._first = act, first

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        if self._first:
            self._act()
        yield from super().run_units(job, work)
        if not self._first:
            self._act()


def test_a_processed_file_that_becomes_empty_has_changed(table: ScheduledTable, tmp_path: Path) -> None:
    empty(table, "dt=2026-11-20/b.parquet")
    with pytest.raises(SourceError, match=r"'dt=2026-11-20/b\.parquet': it was processed and is empty now"):
        table.run()
    assert table.run(on_changed="ignore").counts.ignored == 1
    result = table.run(on_changed="reprocess")
    assert (result.counts.removed, result.counts.again) == (1, 1), "the file that shares its unit is done again"
    assert not [row for row in table.rows() if row["row_id"].startswith("dt=2026-11-20/b")]
    Path(table.root, "in", "dt=2026-11-20", "b.parquet").unlink()
    table.check(tmp_path)
    table.put("dt=2026-11-20/b.parquet", prompts(40, 1))
    table.run()
    table.check(tmp_path / "again")


def test_an_empty_file_that_may_still_be_written_is_left_alone(table: ScheduledTable) -> None:
    empty(table, "dt=2026-11-21/a.parquet")
    result = table.run(settle_seconds=3600)
    assert (result.outcome, result.counts.settling) == ("nothing new", 1)


@pytest.mark.parametrize("first", [True, False], ids=["the first run", "a later run"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_without_rows_do_not_stop_the_schedule(
    tmp_path: Path, qwen3_folder: Path, first: bool, kind: str
) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    folder = tmp_path / "table" / "in"
    folder.mkdir(parents=True)

    def put(name: str, text: str) -> None:
        if kind == "jsonl":
            (folder / f"{name}.jsonl").write_text(text)
        else:
            rows = pa.table({"prompt": pa.array([text] if text.strip() else [], pa.string())})
            pq.write_table(rows, folder / f"{name}.parquet")

    row = '{"prompt": "a"}\n'
    if not first:
        put("a", row)
        table.run()
    put("b", "\n")
    result = table.run()
    assert result.outcome == "nothing new"
    assert "1 new file; without a row" in result.describe()
    put("c", row)
    assert table.run().outcome == "done"
    assert table.run().outcome == "nothing new"
    put("c", "\n")
    assert table.run(on_changed="reprocess").counts.again == 1
    assert {row["row_id"] for row in table.rows()} == ({"a.jsonl:0", "a.parquet:0"} & {f"a.{kind}:0"} if not first
                                                       else set())  # fmt: skip
    assert table.run().outcome == "nothing new"


def test_files_in_no_folder_of_the_key_are_counted(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("date=2026-11-20/a.parquet", prompts(0, 2))
    Path(table.root, "in", "notes.txt").write_text("no input")
    result = table.run(since="2026-11-01")
    assert result.describe() == (
        "Input: nothing new; 1 file in no folder of the partition key, left out; "
        "not read: 1 file below the input (hidden, of no known kind, or a folder that a pattern ends at): 'notes.txt'"
    )
    assert table.run(since="2026-11-01", partition_key="date").outcome == "done"


def test_a_name_that_is_no_text_is_named(table: ScheduledTable) -> None:
    Path(table.root, "in", "dt=2026-11-20", os.fsdecode(b"\xff.parquet")).write_bytes(b"x")
    with pytest.raises(SourceError, match=r"xff\.parquet': its name is not UTF-8\. Rename it"):
        table.run()


def test_a_file_of_the_future_is_processed(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    ahead = time.time() + 10**6
    os.utime(Path(table.root, "in", "dt=2026-11-22", "a.parquet"), (ahead, ahead))
    assert table.run().outcome == "done"
    table.check(tmp_path)


def test_a_file_that_changes_during_the_run_is_taken_by_the_next_as_it_is_then(
    table: ScheduledTable, tmp_path: Path
) -> None:
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    with pytest.raises(SourceError, match=r"changed during the run\. Run again: it is taken as it is then"):
        table.run(Meanwhile(lambda: table.put("dt=2026-11-22/a.parquet", prompts(70, 9)), first=True))
    assert table.run().outcome == "done"
    table.check(tmp_path)


@pytest.mark.parametrize("first", [True, False], ids=["before it is read", "after it is read"])
def test_what_was_committed_of_a_file_that_changes_or_goes_does_not_count(
    table: ScheduledTable, tmp_path: Path, first: bool
) -> None:
    """The run ends before it publishes; nothing of it stays in the ledger."""
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    table.put("dt=2026-11-23/b.parquet", prompts(90, 5))

    def act() -> None:
        table.put("dt=2026-11-22/a.parquet", prompts(70, 9))
        if not first:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SourceError)):
        table.run(Meanwhile(act, first=first))
    table.remove("dt=2026-11-23/b.parquet")
    assert table.run().outcome == "done"
    table.check(tmp_path)
    found = status(table.config.run.output)
    assert found["units_committed"] == found["units_published"]


def test_an_input_that_was_copied_is_compared_once(table: ScheduledTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other stamps, and each would be read by every run."""
    folder = Path(table.root, "in")
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    assert [*table.run().intake.new] == ["dt=2026-11-22/a.parquet"]

    def read(*args: Any) -> Any:
        raise AssertionError("a file was read")

    monkeypatch.setattr("pipeline.commands.etl_intake.source_file", read)
    assert table.run().outcome == "nothing new"


@pytest.mark.parametrize("on_changed", ["error", "ignore"])
def test_a_renamed_file_is_not_done_twice(tmp_path: Path, qwen3_folder: Path, on_changed: Any) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("a.parquet", prompts(0, 2))
    table.run()
    os.rename(f"{table.root}/in/a.parquet", f"{table.root}/in/b.parquet")
    with pytest.raises(SourceError, match=r"'a\.parquet' was processed and is gone, and 'b\.parquet' has the same"):
        table.run(on_changed=on_changed)
    assert table.run(on_changed="reprocess").outcome == "done"
    assert {row["row_id"] for row in table.rows()} == {"b.parquet:0", "b.parquet:1"}


def test_an_input_whose_parent_is_given_is_not_done_twice(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("day/a.parquet", prompts(0, 2))
    table.run(input=f"{table.place}/in/day")
    with pytest.raises(SourceError, match=r"'a\.parquet' was processed and is gone, and 'day/a\.parquet' has the same"):
        table.run(on_changed="ignore")


def test_links_and_names_with_brackets_are_read_and_the_rest_is_named(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "[table]"), qwen3_folder)
    table.put("a[1].parquet", prompts(0, 2))
    root = Path(table.root, "in")
    (tmp_path / "linked").mkdir()
    os.rename(shutil.copy(root / "a[1].parquet", tmp_path / "linked"), tmp_path / "linked" / "B.PARQUET")
    os.symlink(tmp_path / "linked", root / "there")
    os.symlink(root, root / "loop")
    os.symlink(root / "nothing", root / "broken.parquet")
    for name in ("_SUCCESS", "c.snappy"):
        (root / name).write_text("?")
    result = table.run()
    assert result.intake.new == ("a[1].parquet", "there/B.PARQUET")
    assert result.counts.unread.count == 4
    assert set(result.counts.unread.names) == {"_SUCCESS", "broken.parquet", "c.snappy", "loop"}
    assert "not read: 4 files below the input" in result.describe()
