"""Scheduled runs of many files: in rounds that are published by themselves, with the rows of one round over all."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipeline.commands.etl import plan_etl
from pipeline.commands.etl_config import EtlConfig
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.scheduled_table import ScheduledTable, prompts


@pytest.fixture
def table(tmp_path: Path, qwen3_folder: Path) -> ScheduledTable:
    """Eleven files in three folders, of one to three rows."""
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    for number in range(11):
        table.put(f"dt=2026-11-{20 + number // 4}/{number:02}.parquet", prompts(10 * number, 1 + number % 3))
    return table


@pytest.mark.parametrize("most", [3, 11])
def test_a_run_in_rounds_leaves_the_rows_of_one_run(table: ScheduledTable, tmp_path: Path, most: int) -> None:
    result = table.run(max_files=most)
    assert (result.outcome, result.counts.new, result.intake.left) == ("done", 11, 11 - most)
    assert result.summary is not None
    assert len(result.summary.publications) == -(-11 // most)
    assert result.summary.session.rows == result.summary.total.rows == sum(map(len, table.files.values()))
    table.check(tmp_path)
    assert table.run(max_files=most).outcome == "nothing new"


def test_changes_are_done_in_rounds_too_one_publication_after_the_other(table: ScheduledTable, tmp_path: Path) -> None:
    table.run(max_files=4)
    for number in (0, 5, 6):
        table.put(f"dt=2026-11-{20 + number // 4}/{number:02}.parquet", prompts(500 + 10 * number, 2))
    table.remove("dt=2026-11-20/02.parquet")
    table.put("dt=2026-11-29/new.parquet", prompts(900, 3))
    table.put("dt=2026-11-29/new-2.parquet", prompts(910, 3))
    result = table.run(max_files=2, on_changed="reprocess")
    assert result.counts.new == 2
    assert result.counts.removed == 1
    table.check(tmp_path)
    assert table.run().outcome == "nothing new"


def test_a_run_that_ends_between_rounds_is_continued(table: ScheduledTable, tmp_path: Path) -> None:
    class Ends(InlineExecutor):
        def run_units(self, job, work):  # type: ignore[no-untyped-def]
            if next(rounds) == 2:
                raise KeyboardInterrupt
            return super().run_units(job, work)

    rounds = itertools.count()
    with pytest.raises(KeyboardInterrupt):
        table.run(Ends(), max_files=2)
    result = table.run(max_files=50)
    assert result.counts.new == 11 - 4
    table.check(tmp_path)


def test_files_without_rows_end_no_run(table: ScheduledTable) -> None:
    for name in ("dt=2026-11-20/00b", "dt=2026-11-20/00c", "dt=2026-11-29/z"):
        Path(table.root, "in", f"{name}.jsonl").parent.mkdir(exist_ok=True)
    only = Path(table.root, "in", "dt=2026-11-20")
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("00b", "00c"):
        pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), only / f"{name}.parquet")
    result = table.run(max_files=1)
    assert (result.outcome, result.counts.new) == ("done", 13)
    assert len({row["row_id"] for row in table.rows()}) == sum(map(len, table.files.values()))


def test_the_plan_shows_the_first_round_and_counts_the_rest(table: ScheduledTable) -> None:
    intake = plan_etl(EtlConfig(run=table.config.run, max_files=3))
    assert (len(intake.new), intake.left) == (3, 8)


def test_a_session_is_one_over_all_rounds(table: ScheduledTable) -> None:
    class Counts(InlineExecutor):
        begun = ended = 0

        def session(self):  # type: ignore[no-untyped-def]
            from contextlib import contextmanager

            @contextmanager
            def session():  # type: ignore[no-untyped-def]
                Counts.begun += 1
                yield
                Counts.ended += 1
                depth.append(Counts.begun - Counts.ended)

            return session()

    depth: list[int] = []
    table.run(Counts(), max_files=4)
    assert depth == [1, 1, 1, 0], "the rounds' sessions lie in that of the run"
