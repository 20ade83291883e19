"""Text and Arrow files, plain and compressed, here and in a store: every row once, in order, and bad ones alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import SourceError
from pipeline.plan.units import plan_units
from pipeline.sources import BAD, HIDDEN, RAW, check_apart, text
from testing.pipeline.s3 import S3Server
from testing.pipeline.source_rows import all_rows, opened
from testing.repository import ROOT

CODECS = {"": lambda data: data, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}


def visible(table: pa.Table) -> list[dict[str, Any]]:
    return table.select([name for name in table.column_names if name not in HIDDEN]).to_pylist()


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A folder to put files in: its location, storage options, and a function that puts one."""
    name = f"b{uuid.uuid4().hex[:12]}"
    if request.param == "local":
        location, options = str(tmp_path / name), {}
        fs, root = fsspec.core.url_to_fs(location)
        fs.mkdir(root)
    elif request.param == "memory":
        location, options = f"memory://{name}", {}
    else:
        server: S3Server = request.getfixturevalue("s3")
        location, options = server.bucket(name), server.options
    fs, root = fsspec.core.url_to_fs(location, **options)

    def put(key: str, data: bytes) -> None:
        fs.makedirs(f"{root}/{key}".rsplit("/", 1)[0], exist_ok=True)
        fs.pipe_file(f"{root}/{key}", data)

    yield location, options, put
    if request.param == "memory":
        fs.rm(root, recursive=True)


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


def arrow(table: pa.Table, *, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def jsonl(table: pa.Table) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in table.to_pylist()).encode()


def as_csv(table: pa.Table, delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(table.column_names)
    writer.writerows([["" if v is None else v for v in row.values()] for row in table.to_pylist()])
    return text.getvalue().encode()


FORMATS = {
    "x.parquet": parquet, "x.jsonl": jsonl, "x.jsonl.gz": jsonl, "x.jsonl.zst": jsonl, "x.csv": as_csv,
    "x.csv.gz": as_csv, "x.csv.zst": as_csv, "x.tsv": lambda table: as_csv(table, "\t"), "x.arrow": arrow,
    "x.feather": arrow, "x.arrows": lambda table: arrow(table, stream=True),
}  # fmt: skip
TABLE = pa.table({"prompt": [f"p\u00e9{i}\nsecond line" for i in range(7)], "k": [1, 2, None, 4, 5, 6, 7]})


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_from_every_place(place: Any, tmp_path: Path, name: str) -> None:
    location, options, put = place
    encode = CODECS.get(Path(name).suffix, CODECS[""])
    put(f"in/{name}", encode(FORMATS[name](TABLE)))
    put("in/_hidden.parquet", b"not read")
    put("in/.dots/x.csv", b"not read")
    put("in/README.md", b"not read")
    for path in (f"{location}/in/{name}", f"{location}/in", f"{location}/in/x*"):
        source = opened(path, tmp_path, options=options)
        assert [f.key for f in source.files] == [name]
        for rows in (1, 3, 100):
            assert visible(all_rows(source, rows)) == TABLE.to_pylist()
        # A task begins anywhere, and finished units are left out.
        units = list(plan_units(source, 2, "f"))
        for chosen in ([units[3]], units[1:3], [units[0], units[2]]):
            got = [row for table in source.read([unit.rows for unit in chosen]) for row in visible(table)]
            first = [unit.rows.first_row for unit in chosen]
            assert got == [row for i in first for row in TABLE.to_pylist()[i : i + 2]]


@pytest.mark.parametrize("small", [0, 2**30], ids=["large row groups", "small row groups"])
def test_parquet_is_read_by_pages_or_by_row_groups(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr("pipeline.sources.formats.parquet._SMALL_ROW_GROUP_BYTES", small)
    location, options, put = place
    put("x.parquet", parquet(TABLE))
    source = opened(f"{location}/x.parquet", tmp_path, options=options)
    assert visible(all_rows(source, 3)) == TABLE.to_pylist()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel how much memory the process has had")
@pytest.mark.parametrize("kind", ["parquet", pytest.param("csv.zst", marks=pytest.mark.slow)])
def test_memory_is_that_of_a_unit_and_not_of_a_row_group_or_file(tmp_path: Path, kind: str) -> None:
    prompts = [f"{'words of a prompt ' * 40}{i}" for i in range(60_000)]
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        table = pa.table({"prompt": prompts})
        pq.write_table(table, path, row_group_size=10**6, compression="none", use_dictionary=False)
    else:
        rows = pa.table({"prompt": prompts})
        path.write_bytes(CODECS[f".{kind.rsplit('.', 1)[-1]}"](FORMATS[f"x.{kind}"](rows)))
    code = f"""
import pyarrow as pa
from pipeline import layout
from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
def high():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
def read(source, units):
    return sum(t.num_rows for k in read_tasks(units) for t in read_units(source, k.units))
source = open_source({str(path)!r}, LocalStorage({str(tmp_path)!r}, layout.SCRATCH))
units = list(plan_units(source, 64, "f"))
read(source, units[:8])
before = high()
rows = read(source, units)
print(rows, high() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, grown = done.stdout.split()
    assert int(rows) == 60_000
    assert float(grown) < 20, "the file holds 43 MB of text"


def test_files_of_a_folder_are_in_order_and_one_schema(place: Any, tmp_path: Path) -> None:
    location, options, put = place
    put("in/b/2.csv", b"prompt,n\nx,1\n")
    put("in/a.csv", b"\xef\xbb\xbfn,prompt,more\n2.5,y,true\n")
    source = opened(f"{location}/in", tmp_path, options=options)
    assert [f.key for f in source.files] == ["a.csv", "b/2.csv"]
    assert visible(all_rows(source, 5)) == [
        {"n": 2.5, "prompt": "y", "more": True},
        {"n": 1.0, "prompt": "x", "more": None},
    ]


@pytest.mark.parametrize("kind", ["arrow", "csv.zst"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    encode = CODECS.get(f".{kind.rsplit('.', 1)[-1]}", CODECS[""])
    big = pa.table({"prompt": [str(i) * 40 for i in range(5000)]})
    data = encode(FORMATS[f"x.{kind}"](big))
    (tmp_path / f"x.{kind}").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=rf"x\.{kind}.*Correct or remove"):
        all_rows(opened(str(tmp_path / f"x.{kind}"), tmp_path), 100)


def test_feather_files_with_dictionaries_keep_their_types(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "d": pa.array(["u", None]).dictionary_encode()})
    feather.write_feather(table, tmp_path / "x.feather")
    got = all_rows(opened(tmp_path / "x.feather", tmp_path), 1)
    assert got.schema.equals(table.schema)
    assert got.to_pylist() == table.to_pylist()


def test_a_stream_whose_dictionaries_change_on_the_way(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    with pa.ipc.new_stream(tmp_path / "x.arrows", pa.schema([("prompt", kind)])) as writer:
        for words in (["a", "b"], ["c"], ["b", "d"]):
            writer.write_batch(pa.record_batch({"prompt": pa.array(words).dictionary_encode().cast(kind)}))
    assert all_rows(opened(tmp_path / "x.arrows", tmp_path), 2)["prompt"].to_pylist() == ["a", "b", "c", "b", "d"]


# --- text -----------------------------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=9),
                            st.none() | st.integers(-(2**63), 2**63 - 1)), max_size=30),
    unit=st.integers(1, 9),
    codec=st.sampled_from(sorted(CODECS)),
    ending=st.sampled_from(["\n", "\r\n"]),
    blank=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_csv_units_hold_every_record_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], unit: int, codec: str, ending: str, blank: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=ending * 2 if blank else ending, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["prompt", "k"])
    writer.writerows([["first", 1], *([a, "" if b is None else b] for a, b in rows)])
    path = tmp_path_factory.mktemp("in") / f"x.csv{codec}"
    path.write_bytes(CODECS[codec](text.getvalue().encode()))
    table = all_rows(opened(path, path.parent), unit)
    assert table.schema.field("k").type == pa.int64()
    assert visible(table) == [{"prompt": a, "k": b} for a, b in [("first", 1), *rows]]
    assert table[BAD].null_count == len(table)


def test_csv_records_that_do_not_fit_are_bad_rows_with_their_text(tmp_path: Path) -> None:
    lines = [
        b"prompt,k", b"a,1", b"b", b"c,2,3", b'"d ""quoted"" , and', b'two lines",4', b"\xff\xfe,5", b"e,five",
        b'"never closed,6', b"f,7", b'"g"h,8', b"i,9",
    ]  # fmt: skip
    (tmp_path / "x.csv").write_bytes(b"\n".join([*lines[:3], b"", *lines[3:]]))
    for unit in (1, 2, 5, 100):
        table = all_rows(opened(tmp_path / "x.csv", tmp_path), unit)
        good = [row["prompt"] for row, bad in zip(visible(table), table[BAD].to_pylist(), strict=True) if bad is None]
        assert good == ["a", 'd "quoted" , and\ntwo lines', "e", "f", "i"]
        bad = [(b, r) for b, r in zip(table[BAD].to_pylist(), table[RAW].to_pylist(), strict=True) if b is not None]
        assert [raw for _, raw in bad] == ["b", "c,2,3", "\\xff\\xfe,5", '"never closed,6', '"g"h,8']
        for (reason, _), word in zip(bad, ["1 cells", "3 cells", "UTF-8", "never closed", "never closed"], strict=True):
            assert word in reason


def test_a_cell_beyond_the_sample_that_is_of_another_type_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.formats.csv._INFER_ROWS", 2)
    (tmp_path / "x.csv").write_text(
        "i,f,b,t\n1,0.5,true,007\n2,1e-05,false,8\nx,1.0,true,a\n3,1,true,b\n4,1.0,maybe,c\n,,,\n"
    )
    table = all_rows(opened(tmp_path / "x.csv", tmp_path), 9)
    assert [str(f.type) for f in table.schema][:4] == ["int64", "double", "bool", "string"]
    assert table["t"].to_pylist() == ["007", "8", "a", "b", "c", ""]
    assert [None if b is None else b.split(":")[0] for b in table[BAD].to_pylist()] == [
        None, None, "column 'i'", "column 'f'", "column 'b'", None
    ]  # fmt: skip
    assert visible(table)[-1] == {"i": None, "f": None, "b": None, "t": ""}


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "no header"), (b"a,a\n1,2\n", "each once"), (b"a,\n1,2\n", "each once"), (b"\xff\n1\n", "not UTF-8")],
)
def test_a_csv_header_that_names_no_columns_is_an_error(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(SourceError, match=words):
        opened(tmp_path / "x.csv", tmp_path)


def test_json_that_no_column_can_hold_is_a_bad_row(tmp_path: Path) -> None:
    lines = [
        b'{"prompt": "a", "n": 1}', b'{"prompt": "\\ud800"}', b'{"\\udfff": 1}', b'{"n": 99999999999999999999}',
        b'{"prompt": "b", "unknown": 1}', b"[" * 100_000, b'{"prompt": "c"}',
    ]  # fmt: skip
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(CODECS[".zst"](b"\n".join([lines[0]] * 20_000 + lines)))
    table = all_rows(opened(path, tmp_path), 512).slice(20_000)
    assert [bad is None for bad in table[BAD].to_pylist()] == [True, False, False, False, False, False, True]
    assert table["prompt"].to_pylist() == ["a", None, None, None, "b", None, "c"], "cells that fit are kept"
    assert all(table[RAW].to_pylist()[1:6])


# --- opening --------------------------------------------------------------------------------------


def test_folders_with_two_kinds_and_unknown_files_are_refused(place: Any, tmp_path: Path) -> None:
    location, options, put = place
    put("two/a.csv", b"prompt\nx\n")
    put("two/b.jsonl", b'{"prompt": 1}\n')
    put("odd/x.docx", b"?")
    with pytest.raises(SourceError, match="JSON Lines and CSV"):
        opened(f"{location}/two", tmp_path, options=options)
    assert len(all_rows(opened(f"{location}/two/*.csv", tmp_path, options=options), 1)) == 1
    for path in ("odd/x.docx", "odd"):
        with pytest.raises(SourceError, match=r"unknown suffix of 'x\.docx'"):
            opened(f"{location}/{path}", tmp_path, options=options)
    with pytest.raises(SourceError, match="no file is there"):
        opened(f"{location}/nothing/*.csv", tmp_path, options=options)


def test_a_store_that_cannot_be_asked_is_an_error_that_names_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    with pytest.raises(SourceError, match=r"failed with MisuseError: TypeError.*nonsense"):
        opened("s3://bucket/in", tmp_path, options={"nonsense": 1})
    with pytest.raises(SourceError, match="gopher"):
        opened("gopher://x/y.csv", tmp_path)


def test_reading_goes_on_behind_the_last_slice_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"prompt": [str(i) for i in range(40)]}), tmp_path / "x.parquet", row_group_size=4)
    source = opened(tmp_path / "x.parquet", tmp_path)
    real, fails = type(source)._read, iter([2, 0, 3, None])

    def breaks(self: Any, slices: Any) -> Iterator[pa.Table]:
        stop = next(fails)
        for i, table in enumerate(real(self, slices)):
            if i == stop:
                raise ConnectionResetError("connection reset")
            yield table

    monkeypatch.setattr(type(source), "_read", breaks)
    slices = [unit.rows for unit in plan_units(source, 5, "f")]
    assert pa.concat_tables(source.read(slices))["prompt"].to_pylist() == [str(i) for i in range(40)]

    def always(self: Any, slices: Any) -> Iterator[pa.Table]:
        raise ConnectionResetError("connection reset")
        yield

    monkeypatch.setattr(type(source), "_read", always)
    with pytest.raises(
        SourceError, match=r"reading .*x\.parquet failed 5 times, last with ConnectionResetError: connection reset"
    ):
        list(source.read(slices))


def test_planning_a_text_file_goes_on_behind_the_slices_that_were_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_PAGE_SLICES", 3)
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/planned/x.jsonl", b"".join(b'{"prompt": "%d"}\n' % i for i in range(40)))
    source = opened("memory://planned/x.jsonl", tmp_path)
    expected = list(source.slices(3))
    assert [piece.first_row for piece in expected] == list(range(0, 40, 3))
    real, fails = type(source)._slices_of, iter([4, 0, 11, None])

    def breaks(self: Any, *given: Any) -> Iterator[Any]:
        stop = next(fails)
        for i, piece in enumerate(real(self, *given)):
            if i == stop:
                raise ConnectionResetError("connection reset")
            yield piece

    monkeypatch.setattr(type(source), "_slices_of", breaks)
    assert list(source.slices(3)) == expected
    assert next(fails, "none left") == "none left"
    fs.rm("/planned", recursive=True)


@pytest.mark.parametrize(
    ("data", "output", "inside"),
    [
        ("in", "in/out", True), ("in", "in", True), ("in", "inner", False), ("in/*.csv", "in/out", False),
        ("in/**/*.csv", "in/out", True), ("s3://b/in", "s3://b/in/out", True), ("s3://b/in/", "s3://b/inner", False),
        ("s3://b/in", "in/out", False), ([{"prompt": "x"}], "in", False),
    ],
)  # fmt: skip
def test_an_output_inside_its_input_is_refused(data: Any, output: str, inside: bool) -> None:
    if inside:
        with pytest.raises(SourceError, match="lies inside"):
            check_apart(data, output)
    else:
        check_apart(data, output)
