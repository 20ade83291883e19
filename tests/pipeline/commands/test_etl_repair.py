"""A table whose state was damaged by hand: without ``--repair`` an error that names it; with it, each row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import DamagedError
from testing.pipeline.scheduled_table import ScheduledTable, prompts


@pytest.fixture
def table(tmp_path: Path, qwen3_folder: Path) -> ScheduledTable:
    """Two publications; of the first, two files share a unit."""
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=2026-11-20/a.parquet", prompts(0, 2))
    table.put("dt=2026-11-20/b.parquet", prompts(10, 1))
    table.put("dt=2026-11-21/a.parquet", prompts(20, 6))
    table.run()
    table.put("dt=2026-11-22/a.parquet", prompts(30, 5))
    table.run()
    return table


def state(table: ScheduledTable, name: str) -> Path:
    return Path(table.config.run.output, "__wedlm", name)


def lose_records(table: ScheduledTable) -> None:
    shutil.rmtree(state(table, "manifest"))
    shutil.rmtree(state(table, "publications"))


def lose_last_record(table: ScheduledTable) -> None:
    shutil.rmtree(state(table, "manifest"))
    max(state(table, "publications").iterdir()).unlink()


def lose_a_folder(table: ScheduledTable) -> None:
    shutil.rmtree(Path(table.config.run.output, "data-000000"))


def lose_ledger(table: ScheduledTable) -> None:
    shutil.rmtree(state(table, "ledger"))


DAMAGES = [lose_records, lose_last_record, lose_a_folder, lose_ledger]


@pytest.mark.parametrize(("damage", "most"), [*((damage, 50_000) for damage in DAMAGES), (lose_records, 1)])
def test_repair_does_what_the_error_says(
    table: ScheduledTable, tmp_path: Path, damage: Callable[[ScheduledTable], None], most: int
) -> None:
    damage(table)
    table.put("dt=2026-11-23/a.parquet", prompts(50, 3))
    if damage is not lose_ledger:  # without it rows can be read and added, not replaced
        with pytest.raises(DamagedError, match="--repair"):
            table.run()
    assert table.run(repair=True, max_files=most).outcome == "done"
    table.check(tmp_path)
    assert table.run(repair=True).outcome == "nothing new"


@pytest.mark.parametrize("damage", [lose_records, lose_a_folder, lose_ledger])
def test_rows_of_a_file_that_is_gone_are_not_removed_by_a_repair(
    table: ScheduledTable, damage: Callable[[ScheduledTable], None]
) -> None:
    damage(table)
    table.remove("dt=2026-11-20/b.parquet")
    folders = sorted(path.name for path in Path(table.config.run.output).glob("data-*"))
    with pytest.raises(DamagedError, match=r"'dt=2026-11-20/b\.parquet', which is"):
        table.run(repair=True, on_changed="ignore")
    assert sorted(path.name for path in Path(table.config.run.output).glob("data-*")) == folders


def test_lists_of_units_are_made_anew_from_the_rows(table: ScheduledTable, tmp_path: Path) -> None:
    shutil.rmtree(state(table, "units"))
    table.put("dt=2026-11-23/a.parquet", prompts(50, 3))
    assert table.run().outcome == "done"
    table.check(tmp_path)


def test_a_list_that_cannot_be_made_anew_withdraws_its_publication(table: ScheduledTable, tmp_path: Path) -> None:
    shutil.rmtree(state(table, "units"))
    shutil.rmtree(state(table, "ledger"))
    table.put("dt=2026-11-23/a.parquet", prompts(50, 3))
    with pytest.raises(DamagedError, match="--repair"):
        table.run()
    assert table.run(repair=True).counts.new == 5
    table.check(tmp_path)
