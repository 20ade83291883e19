"""CSV files: digits of cells survive, files of other tools are read, and a bare quote spoils its line only."""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import SourceError
from pipeline.sources import BAD, HIDDEN, RAW, csv_records
from pipeline.sources.csv_records import records
from testing.pipeline.source_rows import all_rows, opened


def table_of(data: bytes, folder: Path, name: str = "x.csv") -> pa.Table:
    (folder / name).write_bytes(data)
    return all_rows(opened(str(folder / name), folder), 2)


def visible(table: pa.Table) -> list[dict[str, Any]]:
    assert table[BAD].null_count == len(table)
    return table.drop_columns(list(HIDDEN)).to_pylist()


@pytest.mark.parametrize(
    "cells",
    [
        ["103547991597142817347", "103547991597142817348"], ["9007199254740993", "1.5"], ["1", "1.5"], ["007", "1"],
        ["+5"], ["1e5"], ["1.10"], ["1_000"], [" 1"], ["12e4567"], ["Nan"], ["nan"], ["inf"], ["NA"], ["null"], ["-0"],
        ["0x1F"], ["1.2.3"], [".5"], ["5."], ["2026-01-01"], ["0.1234567890123456789"], ["true", "TRUE"], ["true", "1"],
        ["9223372036854775808"], ["1E5"], ["4.70e1"],
    ],
    ids=str,
)  # fmt: skip
def test_a_cell_that_a_number_would_not_write_back_is_text(cells: list[str], tmp_path: Path) -> None:
    table = table_of("\n".join(["v,w", *(f"{cell},x" for cell in cells)]).encode(), tmp_path)
    assert table["v"].to_pylist() == cells


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
    | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1)
)
@settings(max_examples=50, deadline=None)
def test_numbers_as_python_writes_them_are_numbers(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    table = table_of("\n".join(["v", *map(repr, values)]).encode(), tmp_path_factory.mktemp("in"))
    assert list(map(repr, table["v"].to_pylist())) == list(map(repr, values))


ROWS = [{"prompt": "a, b", "n": 1, "f": 1.0}, {"prompt": 'say "hi"\n', "n": 2, "f": 2.5}]
WRITERS: dict[str, Any] = {
    "pandas": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "polars": lambda: pl.DataFrame(ROWS).write_csv().encode(),
    "excel, UTF-8": lambda: pd.DataFrame(ROWS).to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig"),
    "excel, semicolons": lambda: pd.DataFrame(ROWS).to_csv(index=False, sep=";", lineterminator="\r\n").encode(),
    "excel, sep=": lambda: b"sep=|\r\n" + pd.DataFrame(ROWS).to_csv(index=False, sep="|").encode(),
    "excel, UTF-16": lambda: pd.DataFrame(ROWS).to_csv(index=False, sep="\t", lineterminator="\r\n").encode("utf-16"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_read_as_other_tools_write_them_by_default(name: str, tmp_path: Path) -> None:
    assert visible(table_of(WRITERS[name](), tmp_path)) == ROWS


def test_utf_16_that_ends_inside_a_character_is_refused_and_not_cut(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"begins with the mark of UTF-16, and is not.*Correct or remove it"):
        table_of(WRITERS["excel, UTF-16"]()[:-1], tmp_path)


@pytest.mark.parametrize(("whole", "found"), [("7", [7.0, 1.5]), (str(2**53 + 1), [str(2**53 + 1), "1.5"])])
def test_whole_numbers_of_one_file_are_fractions_of_the_others_only_where_these_hold_them(
    whole: str, found: list[Any], tmp_path: Path
) -> None:
    for name, cell in (("a", whole), ("b", "1.5")):
        (tmp_path / f"{name}.csv").write_text(f"v\n{cell}\n")
    assert all_rows(opened(f"{tmp_path}/*.csv", tmp_path), 2)["v"].to_pylist() == found


def test_the_index_that_pandas_writes_has_the_name_that_pandas_reads(tmp_path: Path) -> None:
    assert visible(table_of(pd.DataFrame(ROWS).to_csv().encode(), tmp_path)) == [
        {"Unnamed: 0": i, **row} for i, row in enumerate(ROWS)
    ]


def test_a_bare_quote_or_carriage_return_in_a_cell_is_a_bad_row(tmp_path: Path) -> None:
    lines = [b'a"b,1', b'a, "b"', b'"a"b,2', b"a\rb,3", b'"5"" pipe",4', b'"a\rb",5']
    table = table_of(b"\n".join([b"prompt,n", *lines]), tmp_path)
    assert [raw is None for raw in table[RAW].to_pylist()] == [False] * 4 + [True] * 2
    assert table["prompt"].to_pylist()[4:] == ['5" pipe', "a\rb"]


@pytest.mark.parametrize("most", [16 * 2**20, 12])
@given(
    pieces=st.lists(st.sampled_from([b"a", b'"', b",", b"\n", b"\r\n", b'"\n', b'""', b'"x"', b"b,c\n"]), max_size=40)
)
@settings(max_examples=100, deadline=None)
def test_a_reader_that_begins_at_any_record_finds_the_same_records(most: int, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "_MOST_BYTES", most)
        found = list(records(io.BytesIO(data), ","))
        assert data.startswith(b"".join(record.raw for record in found))
        for first, last in itertools.combinations(range(len(found) + 1), 2):
            stretch = b"".join(record.raw for record in found[first:last])
            assert [r.cells for r in records(io.BytesIO(stretch), ",")] == [r.cells for r in found[first:last]]


@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [
        *((b"", line, b"") for line in (b'"a\n', b'a,"b\n', b'"\n', b'"a\n"b\n', b'"""\n')),
        (b'"', b'""', b'"\n'), (b'"', b'a""\n', b'"\n'), (b'a,"', b'""', b'",b\n'),
    ],
)  # fmt: skip
def test_cells_that_never_close_and_cells_of_quotes_are_parsed_in_linear_time(
    begin: bytes, piece: bytes, end: bytes
) -> None:
    def seconds(size: int) -> float:
        data = io.BytesIO(begin + piece * (size // len(piece)) + end)
        start = time.process_time()
        assert len(list(records(data, ","))) > 0
        return time.process_time() - start

    small = min(seconds(2**12) for _ in range(3))
    assert seconds(2**17) < 32 * small * 3 + 0.1


def test_rows_of_thousands_of_columns_take_no_quadratic_time(tmp_path: Path) -> None:
    names = [f"k{i}" for i in range(4000)]
    begin = time.process_time()
    table = table_of(f"{','.join(names)}\n{','.join(['1'] * 4000)}\n".encode(), tmp_path)
    (tmp_path / "x.jsonl").write_text(f"{{{','.join(f'{chr(34)}{name}{chr(34)}: 1' for name in names)}}}\n")
    assert all_rows(opened(str(tmp_path / "x.jsonl"), tmp_path), 2).drop_columns(list(HIDDEN)) == table.drop_columns(
        list(HIDDEN)
    )
    assert time.process_time() - begin < 5


def test_a_header_that_is_no_record_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no header .*carriage return"):
        table_of(b"prompt,c\ra,1\rb,2\r", tmp_path)
