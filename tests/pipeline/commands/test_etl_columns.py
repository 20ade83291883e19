"""A table whose input gains columns: old rows are null there for every reader; a type that changes is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from pipeline.commands.read import read
from pipeline.errors import SourceError
from testing.pipeline.scheduled_table import ScheduledTable, prompts


@pytest.fixture(params=["parquet", "ipc", "jsonl"])
def table(request: pytest.FixtureRequest, tmp_path: Path, qwen3_folder: Path) -> ScheduledTable:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder, output_format=request.param)
    table.put("dt=2026-11-20/a.parquet", prompts(0, 3))
    table.put("dt=2026-11-20/b.parquet", prompts(5, 5))
    table.run()
    table.put("dt=2026-11-21/a.parquet", prompts(10, 2, score=7))
    table.run()
    return table


def test_old_rows_are_null_in_a_new_column(table: ScheduledTable, tmp_path: Path) -> None:
    rows = read(table.config.run.output, format="arrow")
    assert rows.schema.field("score").type == pa.int64()
    assert rows["score"].to_pylist() == [None] * 16 + [7] * 4
    table.put("dt=2026-11-21/late.parquet", prompts(20, 2))
    table.run()
    table.check(tmp_path)


def test_a_replaced_file_may_have_the_new_column_too(table: ScheduledTable, tmp_path: Path) -> None:
    table.put("dt=2026-11-20/a.parquet", prompts(30, 2, score=9, topic="t"))
    table.put("dt=2026-11-20/c.parquet", [{"prompt": "", "topic": "fails"}])
    table.run(on_changed="reprocess")
    table.check(tmp_path)
    assert read(table.config.run.output, table="dead_letters", format="arrow")["topic"].to_pylist() == ["fails"]


@pytest.fixture
def parquet(tmp_path: Path, qwen3_folder: Path) -> tuple[str, list[tuple[str, Any]]]:
    """The glob of a table whose later files have a further column; and row id and value of all rows."""
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=2026-11-20/a.parquet", prompts(0, 3))
    table.run()
    table.put("dt=2026-11-21/a.parquet", prompts(10, 2, score=7))
    summary = table.run().summary
    assert summary is not None
    expected = [(f"dt=2026-11-20/a.parquet:{i}", None) for i in range(3)]
    expected += [(f"dt=2026-11-21/a.parquet:{i}", 7) for i in range(2)]
    return summary.glob, [one for one in expected for _ in range(2)]


def test_duckdb_by_name(parquet: tuple[str, list[tuple[str, Any]]]) -> None:
    glob, expected = parquet
    query = f"SELECT row_id, score FROM read_parquet('{glob}', union_by_name = true) ORDER BY row_id"
    assert duckdb.sql(query).fetchall() == expected


def test_polars_with_the_schema_of_all_files(parquet: tuple[str, list[tuple[str, Any]]]) -> None:
    glob, expected = parquet
    files = sorted(Path(glob.split("/data-")[0]).glob("data-*/*.parquet"))
    found = pl.concat([pl.scan_parquet(file) for file in files], how="diagonal").sort("row_id").collect()
    assert found.select("row_id", "score").rows() == expected


def test_pyarrow_with_the_schema_of_all_files(parquet: tuple[str, list[tuple[str, Any]]]) -> None:
    glob, expected = parquet
    folder = glob.split("/data-")[0]
    schema = pa.unify_schemas([fragment.physical_schema for fragment in pads.dataset(folder).get_fragments()])
    found = pads.dataset(folder, schema=schema).to_table(columns=["row_id", "score"]).sort_by("row_id")
    assert [(row["row_id"], row["score"]) for row in found.to_pylist()] == expected


@pytest.mark.parametrize(
    ("before", "after", "types"),
    [(1, "high", ("int64", "string")), (1, 1.5, ("int64", "double")), ("high", [1], ("string", "list"))],
)
def test_a_type_that_changes_is_an_error_with_file_column_types_and_remedy(
    tmp_path: Path, qwen3_folder: Path, before: Any, after: Any, types: tuple[str, str]
) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=1/a.parquet", prompts(0, 2, score=before))
    table.run()
    table.put("dt=2/fine.parquet", prompts(5, 2, score=before))
    table.put("dt=2/wrong.parquet", prompts(10, 2, score=after))
    with pytest.raises(SourceError) as caught:
        table.run()
    message = str(caught.value)
    for part in ("dt=2/wrong.parquet", "column 'score'", *types, "in the table", "write the file with", "another out"):
        assert part in message
    assert len(table.rows()) == 4
    table.put("dt=2/wrong.parquet", prompts(10, 2, score=before))
    table.run()
    table.check(tmp_path)


def test_files_of_one_run_that_contradict_each_other_are_both_named(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=1/a.parquet", prompts(0, 2, score=1))
    table.put("dt=1/b.parquet", prompts(0, 2, score="high"))
    with pytest.raises(SourceError, match=r"'score' is int64 in .*a\.parquet' and string in .*b\.parquet'"):
        table.run()


WIDEN = [
    ("a.jsonl", '{"prompt": "a", "score": 1.5}\n', "b.jsonl", '{"prompt": "b", "score": 2}\n', [1.5, 2.0]),
    ("a.csv", "prompt,score\na,x1\n", "b.csv", "prompt,score\nb,007\n", ["x1", "007"]),
    ("a.csv", "prompt,score\na,1.5\n", "b.csv", "prompt,score\nb,7\n", [1.5, 7.0]),
    ("a.jsonl", '{"prompt": "a", "score": 1}\n', "b.csv", "prompt,score\nb,7\n", [1, 7]),
    ("a.csv", "prompt,score\na,1\n", "b.csv", "prompt,topic\nb,t\n", [1, None]),
]


@pytest.mark.parametrize(("first", "old", "second", "new", "scores"), WIDEN)
def test_values_that_fit_the_type_of_the_table_are_taken(
    tmp_path: Path, qwen3_folder: Path, first: str, old: str, second: str, new: str, scores: list[Any]
) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder, output_format="parquet")
    folder = tmp_path / "table" / "in"
    folder.mkdir(parents=True)
    (folder / first).write_text(old)
    table.run()
    (folder / second).write_text(new)
    table.run()
    assert [row["score"] for row in table.rows() if not row["sample_index"]] == scores


def test_a_file_without_the_prompt_is_an_error(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    table.put("dt=1/a.parquet", prompts(0, 2))
    table.run()
    table.put("dt=2/a.parquet", [{"question": "?"}])
    with pytest.raises(SourceError, match=r"no column prompt"):
        table.run()


def test_a_cell_of_a_column_that_nobody_asked_for_fails_no_row(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path), qwen3_folder, columns=("prompt",))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"prompt": "a", "v": 1}\n{"prompt": "b", "v": NaN}\n')
    summary = table.run().summary
    assert summary is not None
    assert (summary.total.rows, summary.total.failed_rows) == (2, 0)
