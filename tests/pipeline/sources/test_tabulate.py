"""Values of rows come back as they were written: from a column of their type, else as text, else their row fails."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from pipeline.sources import BAD, RAW
from pipeline.sources.json_text import JsonReader, MinusZero, Misfit, Written, write_json
from pipeline.sources.tabulate import comes_back, infer_columns, tabulate
from pipeline.sources.types import Wanted
from testing.pipeline.source_rows import all_rows, opened

TYPED: list[list[Any]] = [
    [1, 2, None], [1, 2.5], [True, None], ["a", ""], [[1], []], [{"k": 1}, {"k": 2}, None], [b"x"], [float("nan"), 1.5],
    [datetime.datetime(2026, 1, 1)], [[{"a": "x"}], [{"a": "y"}]], [-0.0, 1.5],
]  # fmt: skip
TEXT: list[list[Any]] = [
    [12, "twelve"], ["a", ["a", "b"]], [True, 1], [1, {"x": 1}], [7, 2**64 + 1], [-7, 2**63 + 1], [2**64 - 1, 7],
    [[2**70]],
    [1.5, True], [True, 1.5], [[1.5], [True]], [[1.5, True]],
    [2**53 + 1, 1.5], [{}], [{"a": {}}], [{"k": 1}, {"other": 1}], [{"k": 1}, {"k": 1.5}], [{"k": 1}, {"k": True}],
    [{"a": 1, "b": 2}, {"b": 1, "a": 2}], [{"k": None}, {"k": 1}], [[True], [1]], [[1], {"a": 1}], [None], [[]],
    [[], None],
    [{"calls": [{"arguments": {}}]}],
    [datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
]  # fmt: skip


def read_back(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value


@pytest.mark.parametrize("values", [*TYPED, *TEXT], ids=str)
def test_a_column_has_a_type_if_its_values_come_back_from_it_and_is_text_of_them_else(values: list[Any]) -> None:
    rows = [{"prompt": "p", "v": value} for value in values]
    table = tabulate(rows, infer_columns(rows))
    assert table[BAD].to_pylist() == [None] * len(rows)
    found = table["v"].to_pylist()
    if values in TEXT:
        assert table.schema.field("v").type == pa.string()
        for value, text in zip(values, found, strict=True):
            assert text == value if value is None or isinstance(value, str) else json.loads(text) == read_back(value)
    else:
        assert str(found) == str([float(v) if v == 1 and 2.5 in values else v for v in values])


LATER: list[tuple[Any, Any]] = [
    (1, 2.7), ([1], [2.7]), ({"k": 1}, {"k": 1, "new": "x"}), ({"k": 1}, {"other": 1}), ({"k": 1}, {"k": None}),
    ({"k": 1}, {"k": 1.0}), (1, True), (True, 1), ("a", 1), (1, "1"), (1, 2**63), (1.5, 2**53 + 1), ([[1]], [1]),
    ({"k": [1]}, {"k": [1.5]}), ("a", b"a"), (1, {}),
    (1, -0.0), ([1], [-0.0]), (1, MinusZero()),
]  # fmt: skip


@pytest.mark.parametrize(("first", "later"), LATER, ids=str)
def test_a_later_value_that_would_not_come_back_fails_its_row_with_the_column_s_name(first: Any, later: Any) -> None:
    columns = infer_columns([{"prompt": "p", "v": first}])
    rows = [{"prompt": "p", "v": value} for value in (first, later, None)]
    table = tabulate(rows, columns)
    assert table["v"].to_pylist() == [first, None, None]
    assert [reason is None for reason in table[BAD].to_pylist()] == [True, False, True]
    assert "column 'v'" in table[BAD][1].as_py()
    unasked = tabulate([*rows, {"prompt": "p", "new": 1}], columns, Wanted(columns=frozenset({"prompt"})))
    assert unasked[BAD].null_count == 4, "a column that is not asked for fails nothing"
    assert unasked["v"].to_pylist() == [first, None, None, None]


def test_a_prompt_that_is_no_text_is_no_prompt_also_not_as_text() -> None:
    rows = [{"prompt": "a"}, {"prompt": 7}, {"prompt": ["b"]}]
    table = tabulate(rows, infer_columns(rows))
    assert table["prompt"].to_pylist() == ["a", None, None]
    assert "int 7" in table[BAD][1].as_py()


def test_a_column_that_is_null_at_first_holds_whatever_comes_later() -> None:
    columns = infer_columns([{"a": None, "b": []}])
    table = tabulate([{"a": "web", "b": ["x"]}, {"a": {"k": 1}, "b": None}], columns)
    assert table.select(["a", "b"]).to_pylist() == [{"a": "web", "b": '["x"]'}, {"a": '{"k": 1}', "b": None}]


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "0.1234567890123456789", "1e-400", "9" * 5000, "1e-99999999999999"]
)
def test_a_number_that_python_would_round_is_text_of_its_digits(number: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "a", "v": 0.5, "w": [1]}}\n{{"prompt": "b", "v": {number}, "w": [{number}]}}\n')
    table = all_rows(opened(str(path), tmp_path), 9)
    assert table["v"].to_pylist() == ["0.5", number]
    assert table["w"].to_pylist() == ["[1]", f"[{number}]"]


@pytest.mark.parametrize("number", ["0.1", "1e5", "1E+2", "-0.0", "0.10000000000000001", "1.50", "123456789.12345679"])
def test_a_number_that_a_float_identifies_is_that_float(number: str) -> None:
    found = JsonReader().read(number)
    assert isinstance(found, float)
    assert repr(found) == repr(float(number))


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "[1, NaN]", '{"a": 1, "a": 2}', '[{"a": 1, "a": 2}]'])
def test_what_is_no_json_fails_its_row_only_where_its_column_is_asked_for(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = f'{{"prompt": "b", "v": {bad}}}'
    path.write_text(f'{{"prompt": "a", "v": 1.5}}\n{line}\n')
    source = opened(str(path), tmp_path)
    table = all_rows(source, 9)
    assert table["v"].to_pylist() == [1.5, None]
    assert table[RAW].to_pylist() == [None, line]
    assert "column 'v'" in table[BAD][1].as_py()
    source.wanted = Wanted(columns=frozenset({"prompt"}))  # type: ignore[attr-defined]
    assert all_rows(source, 9)[BAD].null_count == 2


def test_a_row_that_names_a_column_twice_is_bad_only_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "v": 1}\n{"prompt": "b", "v": 1, "v": 2}\n')
    source = opened(str(tmp_path / "x.jsonl"), tmp_path)
    assert "column 'v': the key 'v' occurs twice" in all_rows(source, 9)[BAD][1].as_py()
    source.wanted = Wanted(columns=frozenset({"prompt"}))  # type: ignore[attr-defined]
    table = all_rows(source, 9)
    assert (table[BAD].null_count, table["prompt"].to_pylist()) == (2, ["a", "b"])


def test_files_whose_types_differ_are_one_table_of_values_that_come_back(tmp_path: Path) -> None:
    lines = {
        "a": {"n": 2**53 + 1, "f": 1, "s": "x", "k": {"a": 1}, "e": [], "l": [1]},
        "b": {"n": 1.5, "f": 1.5, "s": 5, "k": {"b": 1}, "e": ["x"], "l": [2.5]},
    }
    (tmp_path / "in").mkdir()
    for name, line in lines.items():
        (tmp_path / "in" / f"{name}.jsonl").write_text(json.dumps({"prompt": name, **line}) + "\n")
    table = all_rows(opened(str(tmp_path / "in"), tmp_path), 9)
    assert table[BAD].null_count == 2
    assert table.select(["n", "f", "s", "k", "e", "l"]).to_pylist() == [
        {"n": "9007199254740993", "f": 1.0, "s": "x", "k": '{"a": 1}', "e": [], "l": [1.0]},
        {"n": "1.5", "f": 1.5, "s": "5", "k": '{"b": 1}', "e": ["x"], "l": [2.5]},
    ]


def test_a_frame_keeps_what_its_objects_have(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"prompt": ["a", "b"], "o": [{"k": 1}, {"z": None}], "l": [[1, float("nan")], None], "b": [True, None]}
    )
    table = all_rows(opened(frame, tmp_path), 9)
    assert table["o"].to_pylist() == ['{"k": 1}', '{"z": null}']
    assert str(table["l"].to_pylist()) == "[[1.0, nan], None]"
    assert table["b"].to_pylist() == [True, None]
    assert BAD not in table.column_names


def test_text_of_json_keeps_halves_of_surrogate_pairs_and_refuses_what_json_lacks() -> None:
    assert json.loads(write_json({"a": ["\ud800", Written("1e400")]})) == {"a": ["\ud800", float("inf")]}
    assert comes_back([Misfit("why", "NaN")]) is None
    for value in ([float("nan")], [object()], {"a": b"x"}):
        with pytest.raises((TypeError, ValueError)):
            write_json(value)


def test_half_a_surrogate_pair_is_named_as_such_also_inside_a_cell() -> None:
    columns = infer_columns([{"prompt": "a", "m": [{"content": "b"}]}])
    table = tabulate([{"prompt": "\ud800"}, {"prompt": "a", "m": [{"content": "\udfff"}]}], columns)
    for reason, name in zip(table[BAD].to_pylist(), ("prompt", "m"), strict=True):
        assert f"column {name!r}: half of a surrogate pair" in reason


def test_the_nulls_of_pandas_are_null_in_rows_too() -> None:
    times = [pd.Timestamp("2026-01-01"), pd.NaT]
    rows = [{"t": time, "mixed": cell, "n": [cell]} for time, cell in zip(times, ["x", pd.NA], strict=True)]
    rows.append({"t": None, "mixed": 1, "n": [1]})
    table = tabulate(rows, infer_columns(rows))
    assert table[BAD].null_count == 3
    assert table["t"].to_pylist() == [times[0].to_pydatetime(), None, None]
    assert table["mixed"].to_pylist() == ["x", None, "1"]
    assert table["n"].to_pylist() == ['["x"]', "[null]", "[1]"]


def test_a_name_that_is_no_text_fails_its_row_where_it_is_asked_for() -> None:
    rows = [{"prompt": "a", 1: 2}]
    assert tabulate(rows, infer_columns(rows))[BAD][0].as_py() == "fields [1]: names of columns are text"
    assert tabulate(rows, infer_columns(rows), Wanted(columns=frozenset({"prompt"})))[BAD].null_count == 1


@pytest.mark.parametrize(
    "data",
    [[{"prompt": "a", "__wedlm_x": 1}], pd.DataFrame({"prompt": ["a"], "v": [1j]}),
     pd.DataFrame({"prompt": ["a"], "v": pd.arrays.SparseArray([0])})],
    ids=["hidden name", "complex", "sparse"],
)  # fmt: skip
def test_rows_with_columns_that_cannot_be_kept_are_refused_in_one_line(data: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"Rename|Cast or drop"):
        opened(data, tmp_path)


@pytest.mark.parametrize("wrap", [lambda cell: cell, lambda cell: [cell], lambda cell: {"a": [1, cell]}])
def test_objects_that_differ_in_thousands_of_fields_take_linear_time(wrap: Callable[[Any], Any]) -> None:
    rows = [{"o": wrap({f"k{row}_{field}": field for field in range(300)})} for row in range(200)]
    begin = time.process_time()
    columns = infer_columns(rows)
    table = tabulate(rows, columns)
    later = tabulate(rows, pa.schema([("o", pa.int64())]))
    assert time.process_time() - begin < 2
    assert [json.loads(cell) for cell in table["o"].to_pylist()] == [row["o"] for row in rows]
    assert later[BAD].null_count == 0


@pytest.mark.parametrize("values", [[1, np.float16(0.1)], [1, np.bool_(True)], [[1], [np.bool_(True)]], [["x", b"x"]]])
def test_values_that_arrow_would_mix_are_no_column_of_one_type(values: list[Any]) -> None:
    assert comes_back(values) is None
