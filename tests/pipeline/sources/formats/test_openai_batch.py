"""Files of OpenAI batches: recognised by their first row, unless a setting names the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SourceError
from pipeline.sources import BAD, open_source
from pipeline.sources.formats.openai_batch import BATCH_COLUMNS
from pipeline.storage.open import open_storage
from testing.pipeline.openai_batch import chat_line, completion_line, write_batch


def opened(path: Path, **options: Any) -> Any:
    return open_source(str(path), open_storage(path.parent / "out", "state"), **options)


def rows(source: Any) -> list[dict[str, Any]]:
    return [row for table in source.read(list(source.slices(2))) for row in table.to_pylist()]


def test_lines_are_rows_of_text_with_their_bodies_as_json(tmp_path: Path) -> None:
    lines = [chat_line("a", temperature=0.5), completion_line("b", [1, 2]), chat_line("ü", "\u00e4")]
    source = opened(write_batch(tmp_path / "b.jsonl", ["", *lines]))
    assert source.input_format == "openai-batch"
    assert source.schema == BATCH_COLUMNS
    found = rows(source)
    assert [row["custom_id"] for row in found] == ["a", "b", "ü"]
    assert [json.loads(row["body"]) for row in found] == [line["body"] for line in lines]
    assert [row[BAD] for row in found] == [None] * 3


@pytest.mark.parametrize(
    "first",
    [
        {**chat_line("a"), "metadata": {"k": 1}},
        {"custom_id": "a", "url": "x"},
        [1],
        "no json",
        '{"custom_id": "z", "me',
    ],
    ids=str,
)
def test_a_batch_whose_first_lines_are_broken_is_a_batch(tmp_path: Path, first: Any) -> None:
    source = opened(write_batch(tmp_path / "b.jsonl", [*[first] * 15, chat_line("b")]))
    assert source.input_format == "openai-batch"
    assert rows(source)[-1]["custom_id"] == "b"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").touch()
    write_batch(tmp_path / "in" / "b.jsonl", [first, chat_line("b")])
    assert opened(tmp_path / "in").input_format == "openai-batch"


def test_other_rows_are_rows(tmp_path: Path) -> None:
    lines = [{"prompt": "x"}, {**chat_line("a"), "prompt": "x"}, {"custom_id": "a", "url": "x"}, [1]]
    assert opened(write_batch(tmp_path / "b.jsonl", lines)).input_format == "rows"


def test_the_format_may_be_given(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b.jsonl", ["junk", chat_line("b")])
    found = rows(opened(path, input_format="openai-batch"))
    assert [row["custom_id"] for row in found] == [None, "b"]
    assert found[0][BAD].startswith("not a line of JSON")
    assert opened(write_batch(path, [chat_line("b")]), input_format="rows").input_format == "rows"
    (tmp_path / "t.csv").write_text("prompt\nx\n")
    with pytest.raises(SourceError, match=r"t.csv is a CSV file, which has no such form"):
        opened(tmp_path / "t.csv", input_format="openai-batch")
    with pytest.raises(SourceError, match="of files only"):
        open_source([{"prompt": "x"}], open_storage(tmp_path / "out", "state"), input_format="openai-batch")
    path.write_text("\n\n")
    with pytest.raises(SourceError, match="no rows"):
        opened(path, input_format="openai-batch")


def test_a_line_with_a_field_too_many_keeps_its_id(tmp_path: Path) -> None:
    found = rows(opened(write_batch(tmp_path / "b.jsonl", [chat_line("a"), {**chat_line("b"), "extra": 1}])))
    assert [(row["custom_id"], row[BAD] is None) for row in found] == [("a", True), ("b", False)]


def test_cells_of_other_types_are_faults_of_their_rows(tmp_path: Path) -> None:
    lines = [chat_line("a"), {**chat_line("b"), "custom_id": 5}, {**chat_line("c"), "url": None}, {"custom_id": "d"}]
    found = rows(opened(write_batch(tmp_path / "b.jsonl", lines)))
    assert [row["custom_id"] for row in found] == ["a", None, "c", "d"]
    assert [row[BAD] is None for row in found] == [True, False, True, True]
