"""Numbers are in a prompt as the input has them: from columns of numbers, from text of any values, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.codec import SamplingParams
from pipeline.commands.preview import preview
from pipeline.config import RunConfig
from pipeline.prompts.prompt import template_values
from pipeline.settings.template import NullCellError, PromptTemplate
from pipeline.sources.corrected_rows import table_of
from pipeline.sources.source import BAD, FileSource
from pipeline.sources.types import ANY_VALUES, Wanted
from testing.pipeline.source_rows import all_rows, opened

WRITTEN = Wanted(written=frozenset({"n"}))


def prompts(source: Any) -> list[str | None]:
    """The text of ``{{ n }}`` for each row; None where the row has failed."""
    source.wanted = WRITTEN
    table = all_rows(source, 9)
    cells = template_values(source.schema.field("n"), table["n"])
    good = [True] * len(cells) if BAD not in table.column_names else [bad is None for bad in table[BAD].to_pylist()]
    return [PromptTemplate("{{ n }}").render({"n": cell}) if ok else None for cell, ok in zip(cells, good, strict=True)]


def write(folder: Path, *files: list[str]) -> str:
    for number, cells in enumerate(files):
        lines = [f'{{"prompt": "p", "n": {cell}}}\n' for cell in cells]
        folder.joinpath("in").mkdir(exist_ok=True)
        (folder / f"in/{number}.jsonl").write_text("".join(lines))
    return str(folder / "in")


@pytest.mark.parametrize("number", ["0.5", "-7", "1e400", "0.12345678901234567890123", "1e-400", "-0"])
def test_a_number_inside_an_object_has_its_digits_in_a_prompt(number: str) -> None:
    field = pa.field("c", pa.string(), metadata=ANY_VALUES)
    (cell,) = template_values(field, pa.chunked_array([[f'{{"n": {number}}}']]))
    assert PromptTemplate("{{ c.n }}").render({"c": cell}) == number


NUMBERS: list[list[list[str]]] = [
    [["1", "1.5"]], [["1.0", "1.5"]], [["1", "2"]], [["0.5", "-0"]], [["[1, 2.5]", "[3]"]],
    [["[[1], [0.5]]", "[]"]], [["1"], ["1.5"]], [["1.0"], ["1.5"]], [["1.5"], ["2.5"], ["7"]],
]  # fmt: skip
TEXT: list[list[list[str]]] = [
    [["-0", "1"]], [["1", "[-0]"]], [["[-0, 1]"]], [["1.5"], ["-0"]], [["1"], ["-0"]],
    [["1", "1.0", "2.5"]], [["1", "1.0"]], [["-0.0", "-0"]], [["-0", "1e400"]], [["[-0, 1.5]", "7"]],
    [["[1, 2.5]", "[3.0]"]], [["1"], ["1.0"]], [["1", "1.5"], ["2.0"]], [["1.0"], ["1.5"], ["7"]],
]  # fmt: skip


@pytest.mark.parametrize("files", [*NUMBERS, *TEXT], ids=str)
def test_a_template_writes_the_numbers_of_json_as_they_were_written(files: list[list[str]], tmp_path: Path) -> None:
    source = opened(write(tmp_path, *files), tmp_path)
    assert prompts(source) == [cell for cells in files for cell in cells]
    assert (source.schema.field("n").type == pa.string()) == (files in TEXT)


def test_numbers_of_rows_in_memory_are_written_as_python_writes_them(tmp_path: Path) -> None:
    for values in ([1, 1.5, None], [1.0, 1.5], [1, 1.0, 2.5], [[1, 2.5], [3]]):
        rows = [{"prompt": "p", "n": value} for value in values if value is not None]
        assert prompts(opened(rows, tmp_path)) == [str(value) for value in values if value is not None]


@pytest.mark.parametrize(("first", "later"), [("1", "1.0"), ("1.5", "1"), ("1.0", "1"), ("[1.5]", "[2]")])
def test_a_later_number_that_a_template_would_write_otherwise_fails_its_row(
    first: str, later: str, tmp_path: Path
) -> None:
    source = opened(write(tmp_path, [first]), tmp_path)
    assert isinstance(source, FileSource)
    columns = source.file_schema
    source = opened(write(tmp_path, [first, later]), tmp_path)
    assert isinstance(source, FileSource)
    source.file_schema = source.schema = columns  # as of rows that are not looked at for types
    assert prompts(source) == [first, None]
    source.wanted = Wanted()
    assert all_rows(source, 9)[BAD].null_count == 2, "a column that no template writes holds the equal number"


@pytest.mark.parametrize("table", [None, {b"wedlm.whole_numbers": b"1"}])
def test_files_that_are_added_to_a_table_of_fractions_have_their_own_spelling(table: Any, tmp_path: Path) -> None:
    for cells in (["1", "2"], ["1", "2.5"], ["1.0", "2.5"]):
        source = opened(write(tmp_path, cells), tmp_path)
        assert isinstance(source, FileSource)
        source.widen(pa.schema([("prompt", pa.string()), pa.field("n", pa.float64(), metadata=table)]))
        assert prompts(source) == cells


@pytest.mark.parametrize("cells", [["1", "2.5"], ["1", "2"], ["1.0", "2.5"]], ids=str)
@pytest.mark.parametrize("run", [None, {b"wedlm.whole_numbers": b"1"}])
def test_corrected_rows_have_their_own_spelling(cells: list[str], run: Any, tmp_path: Path) -> None:
    (tmp_path / "fixed.jsonl").write_text("".join(f'{{"row_id": "a:{c}", "n": {c}}}\n' for c in cells))
    columns = pa.schema([pa.field("n", pa.float64(), metadata=run)])
    table = table_of(opened(str(tmp_path / "fixed.jsonl"), tmp_path), "fixed.jsonl", "row_id", columns, ())
    assert [str(cell) for cell in template_values(table.schema.field("n"), table["n"])] == cells


def test_rows_of_every_spelling_are_rendered_by_a_run(qwen3_folder: Path, tmp_path: Path) -> None:
    config = RunConfig(
        input=write(tmp_path, ["1", "1.5", "-0", "null"]), output="unused", model=str(qwen3_folder),
        sampling=SamplingParams(max_tokens=2), prompt_template="{{ n }}", include_token_ids=True,
    )  # fmt: skip
    rows = preview(config, rows=4).to_pylist()
    assert [row["error"] is None for row in rows] == [True, True, True, False]
    assert [row["prompt_tokens"] for row in rows[:3]] == [1, 3, 2], "of the bytes 1, 1.5 and -0"


@pytest.mark.parametrize(
    "text", ['["a",  "b"]', '{"a": null, "b": "x"}', '{"a": 1, "a": 2}', "[1.50]", "[see note]", "{}"]
)
def test_a_template_writes_json_in_text_as_it_stands_there_and_reads_its_parts(text: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('prompt,n\np,"' + text.replace('"', '""') + '"\n')
    table = all_rows(source := opened(str(tmp_path / "in.csv"), tmp_path), 9)
    (cell,) = template_values(source.schema.field("n"), table["n"])
    assert PromptTemplate("{{ n }}|{{ n ~ '.' }}").render({"n": cell}) == f"{text}|{text}."
    if '"b": "x"' in text:
        assert PromptTemplate("{{ n.b }}{% if n.a is none %}!{% endif %}").render({"n": cell}) == "x!"
        with pytest.raises(NullCellError):
            PromptTemplate("{{ n.a }}").render({"n": cell})


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_fraction_of_any_width_is_written_with_the_digits_that_name_it(kind: pa.DataType) -> None:
    for values in ([0.1, 2.5, -3.0, None], [[0.1], [], None]):
        column = pa.array(values, pa.list_(kind) if isinstance(values[0], list) else kind)
        cells = template_values(pa.field("n", column.type), pa.chunked_array([column]))
        assert str(cells) == str(values)


def test_bytes_are_no_text() -> None:
    with pytest.raises(TypeError, match="bytes are no text"):
        PromptTemplate("{{ n }}").render({"n": b"abc"})
