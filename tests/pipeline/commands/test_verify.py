"""``verify`` on real outputs: silent on a right one, and finds each thing that is made wrong on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from jobs import verify as job
from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.commit.sealed import seal_lines, unseal_lines
from pipeline.config import RunConfig
from pipeline.storage.local import LocalStorage
from testing.pipeline.fakes import InlineExecutor

ROWS = [
    {"prompt": "" if i == 13 else f"Count from {i} to {i + 4}.", "k": i, "tags": ["x"] * (i % 3), "when": None}
    for i in range(23)
]
COLUMNS = pa.schema(
    [("prompt", pa.string()), ("k", pa.int16()), ("tags", pa.list_(pa.large_string())), ("when", pa.timestamp("us"))]
)


def make(folder: Path, model: Path, output_format: str) -> Path:
    """``folder`` with ``in`` and a right ``out`` of several parts."""
    (folder / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS, COLUMNS), folder / "in" / "a.parquet", row_group_size=5)
    config = RunConfig(
        input=str(folder / "in"), output=str(folder / "out"), model=str(model), unit_rows=4,
        target_part_bytes=12500, sampling=SamplingParams(max_tokens=4, n=2), output_format=output_format,  # type: ignore[arg-type]
    )  # fmt: skip
    run_on(InlineExecutor(), config, LocalStorage(config.output, layout.SCRATCH), lambda progress: None)
    assert len(list((folder / "out").glob("data-*/*"))) > 2
    return folder


@pytest.fixture(scope="module", params=["parquet", "ipc", "jsonl"])
def made(request: Any, qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"), qwen3_folder, request.param)


@pytest.fixture(scope="module")
def made_of_parquet(qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows are rewritten with Parquet's own tools."""
    return make(tmp_path_factory.mktemp("made"), qwen3_folder, "parquet")


@pytest.fixture
def case(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "case"))


def problems(case: Path, with_input: bool = True) -> str:
    found = pipeline.verify(case / "out", input=str(case / "in") if with_input else None)
    assert found.against_source is with_input
    return "\n".join(found.problems)


def parts(case: Path) -> list[Path]:
    return sorted((case / "out").glob("data-*/*"))


def test_a_right_output_is_proven(made: Path) -> None:
    for source in (None, str(made / "in")):
        found = pipeline.verify(made / "out", input=source)
        assert found.ok, found.problems
        assert (found.units, found.rows, found.output_rows, found.failed_rows) == (6, 23, 45, 1)
        assert found.parts == len(parts(made))
        assert found.bytes == sum(p.stat().st_size for p in parts(made))


def test_a_missing_part_and_a_strange_file_are_found(case: Path) -> None:
    lost = parts(case)[1]
    lost.rename(lost.with_name("part-000099" + lost.suffix))
    text = problems(case)
    assert f"{lost.name}: missing" in text
    assert "part-000099" in text
    assert "not compared" not in text


@pytest.mark.parametrize("where", [0.1, 0.5, 0.95])
def test_a_flipped_byte_is_found(case: Path, where: float) -> None:
    part = parts(case)[0]
    data = bytearray(part.read_bytes())
    data[int(len(data) * where)] ^= 1
    part.write_bytes(data)
    assert f"{part.name}: changed since it was published: other bytes" in problems(case, with_input=False)


def test_a_lost_dead_letter_table_is_found(case: Path) -> None:
    (letters,) = (case / "out" / layout.DEAD_LETTERS).iterdir()
    letters.unlink()
    assert "missing, with 1 rows" in problems(case)


def test_a_changed_or_grown_input_is_found(case: Path) -> None:
    source = case / "in" / "a.parquet"
    whole = pq.read_table(source)
    pq.write_table(whole.slice(0, 3), case / "in" / "b.parquet")
    assert "rows 0 to 2 of 'b.parquet': not in the output" in problems(case)
    (case / "in" / "b.parquet").unlink()
    pq.write_table(whole.set_column(1, "k", pa.array([*range(22), 99], pa.int16())), source, row_group_size=5)
    assert "'a.parquet': its content changed after the run read it" in problems(case)


# --- rows that differ ------------------------------------------------------------------------------


def _rewrite(case: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of the second part."""
    part = parts(case)[1]
    pq.write_table(change(pq.read_table(part)), part)


def _set(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


CHANGES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a row is dropped": (lambda t: pa.concat_tables([t.slice(0, 3), t.slice(4)]), "rows in the place of"),
    "a row is duplicated": (lambda t: pa.concat_tables([t.slice(0, 4), t.slice(3)]), "rows in the place of"),
    "two rows change places": (lambda t: t.take([2, 3, 0, 1, *range(4, t.num_rows)]), "belongs"),
    "a sample is duplicated in the place of another": (
        lambda t: t.take([0, 0, *range(2, t.num_rows)]), "input rows where the unit has"),
    "a text is changed": (lambda t: _set(t, "text", 2, "other"), "checksum differs"),
    "a seed is changed": (lambda t: _set(t, "seed", 2, 5), "checksum differs"),
    "an input value is changed": (lambda t: _set(t, "k", 2, 77), "column 'k' differs from the input's"),
    "a nested input value is changed": (lambda t: _set(t, "tags", 2, ["y"]), "column 'tags' differs"),
    "a null is filled": (lambda t: _set(t, "when", 2, 1), "column 'when' differs"),
    "a failure is hidden": (
        lambda t: _set(t, "finish_reason", t["finish_reason"].to_pylist().index("error"), "stop"), "failed rows where"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_changed_rows_are_found_and_named(made_of_parquet: Path, tmp_path: Path, what: str) -> None:
    case = Path(shutil.copytree(made_of_parquet, tmp_path / "case"))
    change, words = CHANGES[what]
    _rewrite(case, change)
    text = problems(case)
    assert f"{parts(case)[1].name}: changed since it was published" in text
    assert words in text
    touched = {line.split(",")[0] for line in text.splitlines() if ", rows " in line}
    assert touched <= {f"data-000000/{parts(case)[1].name}"}, "other parts are not blamed"


def test_a_committed_unit_that_is_not_published_is_found(case: Path) -> None:
    ledger = sorted((case / "out" / layout.LEDGER).iterdir())
    lines = unseal_lines(ledger[0].read_bytes())
    first = lines[0]
    again = first.replace('"attempt": 1', '"attempt": 2')
    assert again != first
    ledger[0].write_bytes(seal_lines([*lines, again]))
    assert "as of attempt 1, the ledger has attempt 2" in problems(case, with_input=False)
    other = '{"unit_id": "feed' + first[len('{"unit_id": "') + 4 :]
    ledger[0].write_bytes(seal_lines([*lines, other]))
    assert "committed and not published" in problems(case, with_input=False)


def test_a_ledger_that_lost_a_unit_is_found(case: Path) -> None:
    ledger = sorted((case / "out" / layout.LEDGER).iterdir())
    ledger[0].unlink()
    assert "the ledger lacks it" in problems(case)


def test_the_command_prints_a_table_and_exits_with_1_on_a_difference(
    case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(case / "out"), "--input", str(case / "in")]
    assert job.main(argv) == 0
    printed = capsys.readouterr().out
    assert "input rows               23, of which 1 failed" in printed
    assert printed.endswith("proven\n")
    parts(case)[0].unlink()
    assert job.main(argv) == 1
    printed = capsys.readouterr().out
    assert "problem: data-000000/part-000000" in printed
    assert printed.endswith("NOT proven\n")
    assert job.main([str(case / "nowhere")]) == 2


def test_ids_from_a_column_are_compared_with_the_input(qwen3_folder: Path, tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"p{i}" for i in range(9)], "key": [f"id-{i}" for i in range(9)]})
    pq.write_table(table, tmp_path / "in.parquet")
    config = RunConfig(
        input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=4,
        id_column="key", columns=["prompt"], column_prefix="gen_",
    )  # fmt: skip
    run_on(InlineExecutor(), config, LocalStorage(config.output, layout.SCRATCH), lambda progress: None)
    assert pipeline.verify(config.output, input=config.input).ok
    (part,) = (tmp_path / "out").glob("data-*/*")
    rows = pq.read_table(part)
    place = rows.column_names.index("gen_row_id")
    ids = pc.replace_substring(rows["gen_row_id"], "id-3", "id-x")
    pq.write_table(rows.set_column(place, rows.schema.field(place), ids), part)
    text = "\n".join(pipeline.verify(config.output, input=config.input).problems)
    assert "row 'id-x' where 'id-3' belongs" in text
