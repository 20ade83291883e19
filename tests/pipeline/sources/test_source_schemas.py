"""Files whose columns differ in kind are one table where no value changes; else the message names two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import SourceError
from pipeline.plan.job import resolve_job
from pipeline.sinks.staged import data_checksum
from pipeline.sources import open_source, source_of
from pipeline.sources.types import Held, held
from pipeline.storage.local import LocalStorage
from testing.pipeline.source_rows import all_rows, opened

X = pa.array(["x", None, "y"])
N = pa.array([1, None, 3], pa.int32())


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def both(folder: Path, suffix: str, one: pa.Array, other: pa.Array) -> pa.Array:
    for name, column in (("a", one), ("b", other)):
        write(folder / f"in/{name}{suffix}", pa.table({"prompt": ["p"] * len(column), "k": column}))
    return all_rows(opened(folder / "in", folder), 2)["k"].combine_chunks()


PAIRS = {
    "string, large_string": (X, X.cast(pa.large_string()), pa.large_string()),
    "string, dictionary": (X, X.dictionary_encode(), pa.string()),
    "dictionaries": (
        X.dictionary_encode(), pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), ["u", "v"]), None),
    "string_view, string": (X.cast(pa.string_view()), X, pa.string()),
    "binary_view, binary": (pa.array([b"x"], pa.binary_view()), pa.array([b"y"]), pa.binary()),
    "lists of views": (pa.array([["x"]], pa.list_(pa.string_view())), pa.array([["y"]]), pa.list_(pa.string())),
    "lists of dictionaries": (
        pa.array([["x"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), pa.array([["y"]]), pa.list_(pa.string())),
    "int32, int64": (N, N.cast(pa.int64()), pa.int64()),
    "uint32, int32": (N.cast(pa.uint32()), N, pa.int64()),
    "uint64, int64": (N.cast(pa.uint64()), N.cast(pa.int64()), pa.int64()),
    "int64, double": (pa.array([2**53]), pa.array([0.5]), pa.float64()),
    "int32, float": (N, pa.array([0.5], pa.float32()), pa.float64()),
    "null, double": (pa.nulls(2), pa.array([0.5]), pa.float64()),
    "structs": (pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), pa.array([{"a": 2, "b": "x"}]), None),
    "timestamps": (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("us")), pa.timestamp("us")),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_kinds_that_hold_the_same_values_are_read_as_one(tmp_path: Path, pair: str) -> None:
    one, other, kind = PAIRS[pair]
    for number, (first, second) in enumerate(((one, other), (other, one))):
        found = both(tmp_path / str(number), ".arrow", first, second)
        assert found.to_pylist() == [
            value if not isinstance(value, dict) else {"b": None, **value}
            for value in [*first.to_pylist(), *second.to_pylist()]
        ]
        assert kind is None or found.type == kind


APART = {
    "text, whole numbers": (X, N),
    "text, bytes": (X, pa.array([b"x"])),
    "booleans, whole numbers": (pa.array([True]), N),
    "beyond 2**53": (pa.array([1, 2**53 + 1]), pa.array([0.5])),
    "beyond int64": (pa.array([2**64 - 1], pa.uint64()), pa.array([-1])),
    "in a list": (pa.array([[2**60 + 1]]), pa.array([[0.5]])),
    "decimals, double": (pa.array([1], pa.decimal128(38, 2)), pa.array([0.5])),
    "seconds that are no nanoseconds": (pa.array([10**12], pa.timestamp("s")), pa.array([1], pa.timestamp("ns"))),
    "zones": (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("s", "UTC"))),
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("pair", APART)
def test_a_value_that_would_change_is_refused_with_both_files(tmp_path: Path, pair: str, suffix: str) -> None:
    one, other = APART[pair]
    with pytest.raises(SourceError, match=rf"column 'k' is .*[ab]\{suffix}' and .*[ab]\{suffix}'") as raised:
        both(tmp_path, suffix, one, other)
    assert len(str(raised.value).splitlines()) == 1
    for name in ("a", "b"):
        assert f"{name}{suffix}" in str(raised.value)


def test_a_column_that_some_files_lack_may_be_null(tmp_path: Path) -> None:
    field = pa.field("k", pa.int64(), nullable=False)
    write(tmp_path / "in/a.parquet", pa.table({"prompt": ["p"]}))
    schema = pa.schema([("prompt", pa.string()), field])
    write(tmp_path / "in/b.parquet", pa.table([pa.array(["p"]), pa.array([1])], schema))
    source = opened(tmp_path / "in", tmp_path)
    assert source.schema.field("k").nullable
    assert all_rows(source, 5)["k"].to_pylist() == [None, 1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()])
def test_whole_numbers_are_held_always_where_all_of_them_are_exact(kind: pa.DataType) -> None:
    assert held(kind, pa.float64()) is (Held.ALWAYS if kind.bit_width < 53 else Held.BY_VALUE)
    assert held(pa.int64(), pa.float32()) is Held.NEVER
    assert held(kind, kind) is Held.ALWAYS


NESTED_VIEWS = {
    "dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([["x"]])),
    "text": pa.array(["x", None], pa.string_view()),
    "bytes": pa.array([b"x", None], pa.binary_view()),
    "list": pa.array([["x"], None], pa.list_(pa.string_view())),
    "list view": pa.array([[1], None], pa.list_view(pa.int64())),
    "struct": pa.array([{"a": ["x"]}, None], pa.struct([("a", pa.large_list(pa.string_view()))])),
    "map": pa.array([[("a", "x")], None], pa.map_(pa.string(), pa.string_view())),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["x", None])),
}


@pytest.mark.parametrize("kind", NESTED_VIEWS)
@pytest.mark.parametrize("place", ["memory", "arrow", "parquet"])
def test_views_and_runs_are_read_as_plain_columns(tmp_path: Path, kind: str, place: str) -> None:
    table = pa.table({"prompt": pa.array(["p", "q"], pa.string_view()), "k": NESTED_VIEWS[kind]})
    data: Any = table
    if place != "memory":
        if place == "parquet" and kind in ("runs", "list view", "dictionary of lists"):
            pytest.skip("Parquet has no such type")
        data = tmp_path / f"in/x.{place}"
        write(data, table)
    source = opened(data, tmp_path)
    rows = all_rows(source, 5)
    assert rows.to_pylist() == table.to_pylist()
    assert data_checksum(rows, rows.column_names)
    assert "view" not in str(source.schema)
    assert "run_end" not in str(source.schema)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("name", ["prompt", "__wedlm_bad", "__WEDLM_raw", "__wedlm_x"])
def test_columns_of_one_name_and_names_of_ours_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", name])
    write(tmp_path / f"in/x{suffix}", table)
    for data in (tmp_path / "in", table):
        with pytest.raises(SourceError, match=r"several columns named \['prompt'\]|has columns \['__") as raised:
            opened(data, tmp_path)
        assert "Rename them" in str(raised.value)


@pytest.mark.parametrize("name", ["__wedlm_bad", "__wedlm_params"])
def test_names_of_ours_are_refused_in_text_and_in_lists(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.csv").write_text(f"prompt,{name}\na,b\n")
    (tmp_path / "x.jsonl").write_text(f'{{"prompt": "a", "{name}": "b"}}\n')
    storage = LocalStorage(tmp_path / "out", layout.SCRATCH)
    for data in (tmp_path / "in", tmp_path / "x.jsonl", [{"prompt": "a", name: "b"}]):
        with pytest.raises(SourceError, match=f"column.*{name}.*Rename"):
            resolve_job(RunConfig(input=data, output="o", model="tiny"), open_source(data, storage), storage)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("other", [X, pa.array([2**60], pa.int64())], ids=["text", "large whole numbers"])
def test_files_may_contradict_each_other_in_a_column_that_nobody_asks_for(
    tmp_path: Path, suffix: str, other: pa.Array
) -> None:
    for name, column in (("a", pa.array([0.5])), ("b", other)):
        write(tmp_path / f"in/{name}{suffix}", pa.table({"prompt": ["p"] * len(column), "k": column}))
    storage = LocalStorage(tmp_path / "out", layout.SCRATCH)

    def source_with(**fields: Any) -> Any:
        config = RunConfig(input=str(tmp_path / "in"), output=str(tmp_path / "out"), model="tiny", **fields)
        return source_of(config, storage)

    with pytest.raises(SourceError, match=rf"column 'k' .*a{suffix}.*b{suffix}|column 'k' .*b{suffix}.*a{suffix}"):
        source_with()
    with pytest.raises(SourceError, match="column 'k'"):
        source_with(columns=["k"])
    rows = all_rows(source_with(columns=[]), 2)
    assert rows["prompt"].to_pylist() == ["p"] * (1 + len(other))
    assert "k" not in rows.column_names
