"""Folders named ``name=value`` are columns in every format, as ``pyarrow.dataset`` reads them; but 007 is text."""

from __future__ import annotations

import gzip
import io
import pickle
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import HIDDEN, Source, open_source
from pipeline.storage.local import LocalStorage
from testing.pipeline.s3 import S3Server

ROWS = pa.table({"prompt": ["a", "b", "c"]})
FOLDERS = ("year=2026/month=01", "year=2026/month=12", "year=__HIVE_DEFAULT_PARTITION__/month=2", ".")


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def csv(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(table, sink)
    return sink.getvalue()


def jsonl(table: pa.Table) -> bytes:
    return table.to_pandas().to_json(orient="records", lines=True).encode()


def gzipped(table: pa.Table) -> bytes:
    return gzip.compress(jsonl(table))


WRITERS = {"parquet": parquet, "arrow": arrow, "csv": csv, "jsonl": jsonl, "jsonl.gz": gzipped}


def opened(location: str, folder: Path, **given: Any) -> Source:
    return open_source(location, LocalStorage(folder / "out", layout.SCRATCH), **given)


def rows_of(source: Source, unit: int = 2) -> list[dict[str, Any]]:
    tables = [t for task in read_tasks(plan_units(source, unit, "f")) for t in read_units(source, task.units)]
    for table in tables:
        assert table.schema.names[: len(source.schema)] == source.schema.names, "hidden columns come last"
    whole = pa.concat_tables([table.drop_columns([n for n in HIDDEN if n in table.schema.names]) for table in tables])
    assert whole.schema.equals(source.schema)
    return whole.to_pylist()


@pytest.mark.parametrize(("suffix", "place"), [*((suffix, "local") for suffix in WRITERS), ("parquet", "s3")])
def test_they_are_columns_in_every_format_and_place(
    tmp_path: Path, request: pytest.FixtureRequest, suffix: str, place: str
) -> None:
    location, options = str(tmp_path / "in"), {}
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3")
        location, options = f"{server.bucket(f'b{uuid.uuid4().hex[:12]}')}/in", server.options
    fs, root = fsspec.core.url_to_fs(location, **options)
    for folder in FOLDERS:
        fs.makedirs(f"{root}/{folder}", exist_ok=True)
        fs.pipe_file(f"{root}/{folder}/f.{suffix}".replace("/./", "/"), WRITERS[suffix](ROWS))
    source = pickle.loads(pickle.dumps(opened(location, tmp_path, options=options)))
    assert source.schema.equals(pa.schema([("prompt", pa.string()), ("year", pa.int32()), ("month", pa.string())]))
    assert [file.key for file in source.files][:2] == [f"f.{suffix}", f"year=2026/month=01/f.{suffix}"]
    values = [(None, None), (2026, "01"), (2026, "12"), (None, "2")]
    assert rows_of(source) == [{"prompt": p, "year": y, "month": m} for y, m in values for p in "abc"]
    below = opened(f"{location}/year=2026/month=*/*", tmp_path, options=options)
    assert {row["month"] for row in rows_of(below)} == {"01", "12"}, "of a pattern, from its first wildcard on"
    assert "year" not in below.schema.names
    for one in (f"{location}/year=2026", f"{location}/year=2026/month=01/f.{suffix}"):
        assert "year" not in opened(one, tmp_path, options=options).schema.names


@pytest.mark.parametrize(
    "values",
    [["1", "2"], ["1", "x"], ["2147483647", "-5"], ["2147483648"], ["+5"], ["1.5"], ["true"], ["1e3"], ["é"],
     ["a%20b", "%31"], ["2026-01-01"], ["__HIVE_DEFAULT_PARTITION__", "3"], ["", "1"], ["a=b"], [" 1"], ["%zz"]],
    ids=str,
)  # fmt: skip
def test_values_and_types_are_those_of_pyarrow(tmp_path: Path, values: list[str]) -> None:
    for value in values:
        folder = tmp_path / "in" / f"k={value}"
        folder.mkdir(parents=True)
        (folder / "f.parquet").write_bytes(parquet(ROWS))
    theirs = pads.dataset(tmp_path / "in", partitioning="hive")
    source = opened(str(tmp_path / "in"), tmp_path)
    assert source.schema.equals(theirs.schema)
    assert sorted(rows_of(source), key=str) == sorted(theirs.to_table().to_pylist(), key=str)


@pytest.mark.parametrize("values", [["007"], ["7", "08"], ["-0"], ["0x1F"], ["1", "00"]], ids=str)
def test_values_that_numbers_would_not_write_back_are_text(tmp_path: Path, values: list[str]) -> None:
    for value in values:
        folder = tmp_path / "in" / f"k={value}"
        folder.mkdir(parents=True)
        (folder / "f.parquet").write_bytes(parquet(ROWS))
    assert sorted({row["k"] for row in rows_of(opened(str(tmp_path / "in"), tmp_path))}) == sorted(values)


def test_of_a_name_that_files_have_too_theirs_counts_and_the_last_of_two_equal_ones(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "prompt=z" / "k=1" / "k=2" / "=3"
    folder.mkdir(parents=True)
    (folder / "x=y.parquet").write_bytes(parquet(ROWS))
    assert rows_of(opened(str(tmp_path / "in"), tmp_path)) == [{"prompt": p, "k": 2} for p in "abc"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_folder_whose_name_some_files_have_as_a_column_is_named(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in" / "k=6").mkdir(parents=True)
    (tmp_path / "in" / "k=6" / f"a.{kind}").write_bytes(WRITERS[kind](ROWS))
    (tmp_path / "in" / f"b.{kind}").write_bytes(WRITERS[kind](ROWS.append_column("k", pa.array([1, 2, 3]))))
    assert opened(str(tmp_path / "in"), tmp_path).schema.names == ["prompt", "k"]
    assert "column 'k': the files have it, and folders k=... name it too" in caplog.text
