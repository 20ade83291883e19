"""A Delta table as a sink: its log, options of its store, tables of others, and files that others rewrite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, OutputError
from pipeline.sinks.delta_table import store_options
from pipeline.sinks.table_sink import ConflictError, TableSink, open_sink

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

from testing.pipeline.tables import RUN, change_of, commit_to  # noqa: E402

ROWS = pa.table({"row_id": ["a", "b"], "x": pa.array([1, None], pa.int64())})


def sink_at(table: Path) -> TableSink:
    return open_sink("delta", table, {}, {})


def rows_of(table: Path) -> list[dict[str, Any]]:
    return pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table()).to_pylist()


@pytest.mark.parametrize(
    ("url", "options", "wanted"),
    [
        ("/tmp/table", {"anything": 1}, {}),
        ("s3://bucket/table", {}, {}),
        ("s3://b/t", {"key": "k", "token": None}, {"AWS_ACCESS_KEY_ID": "k"}),
        ("s3://b/t", {"secret": "s"}, {"AWS_SECRET_ACCESS_KEY": "s"}),
        (
            "s3://b/t",
            {"endpoint_url": "http://127.0.0.1:1"},
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"},
        ),
        (
            "s3a://b/t",
            {"client_kwargs": {"endpoint_url": "https://store", "region_name": "eu"}},
            {"AWS_ENDPOINT_URL": "https://store", "AWS_REGION": "eu"},
        ),
    ],
)  # fmt: skip
def test_options_of_s3_are_translated(url: str, options: dict[str, Any], wanted: dict[str, str]) -> None:
    assert store_options(url, options, {}) == wanted


def test_an_option_without_a_translation_is_named_and_not_dropped() -> None:
    with pytest.raises(ConfigError, match=r"storage_options \['anon'\].*table_options"):
        store_options("s3://b/t", {"anon": True, "key": "k"}, {})
    given = {"skip_signature": "true"}
    assert store_options("s3://b/t", {"anon": True, "key": "k"}, given) == {"AWS_ACCESS_KEY_ID": "k", **given}


def test_what_is_no_table_and_what_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    sink = sink_at(tmp_path / "none")
    sink.look()
    assert (sink.is_empty(), sink.version, sink.done(RUN, [0])) == (True, 0, {})
    (tmp_path / "bad" / "_delta_log").mkdir(parents=True)
    (tmp_path / "bad" / "_delta_log" / f"{0:020d}.json").write_text("no json")
    with pytest.raises(OutputError, match="the Delta table cannot be read"):
        sink_at(tmp_path / "bad").look()


def test_a_commit_adds_and_removes_files_and_keeps_the_revision(tmp_path: Path) -> None:
    sink, first = sink_at(tmp_path), change_of(ROWS)
    commit_to(sink, first)
    commit_to(sink, change_of(ROWS.slice(1), revision=1, replaces=first))
    log = [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(tmp_path.rglob("*.json"))]
    assert [[sum(kind in action for action in actions) for kind in ("add", "remove", "txn")] for actions in log] == [
        [0, 0, 0], [1, 0, 1], [1, 1, 1],
    ]  # fmt: skip
    sink.look()
    assert (sink.done(RUN, [0, 1]), sink.version, rows_of(tmp_path)) == ({0: 1}, 2, ROWS.slice(1).to_pylist())
    duckdb = pytest.importorskip("duckdb")
    lake = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it
    assert duckdb.sql("select count(*), count(x) from lake").fetchall() == [(1, 0)]


def test_a_commit_in_between_is_a_conflict(tmp_path: Path) -> None:
    sink, other = sink_at(tmp_path), sink_at(tmp_path)
    commit_to(sink, change_of(ROWS))
    sink.look()
    commit_to(other, change_of(ROWS, position=1))
    with pytest.raises(ConflictError):
        sink.commit(change_of(ROWS, position=1))
    with pytest.raises(ConflictError):
        sink.fit(ROWS.append_column("y", pa.array([1, 2])).schema)
    assert len(rows_of(tmp_path)) == 4


def test_a_table_that_cannot_take_the_files_is_left_alone(tmp_path: Path) -> None:
    def create(name: str, schema: pa.Schema, **options: Any) -> Path:
        deltalake.DeltaTable.create(str(tmp_path / name), schema=schema, **options)
        return tmp_path / name

    row_id = pa.field("row_id", pa.string())
    cases = [
        (create("type", pa.schema([("row_id", pa.int64())])), "column 'row_id' is .*long.* there, and .*string"),
        (create("null", pa.schema([row_id, pa.field("z", pa.int64(), nullable=False)])), "'z' must not be null there"),
        (create("parts", pa.schema([row_id, ("x", pa.int64())]), partition_by=["x"]), r"partitioned by \['x'\]"),
    ]
    limited = create("limit", pa.schema([("x", pa.int64())]))
    deltalake.DeltaTable(str(limited)).alter.add_constraint({"positive": "x > 0"})
    cases.append((limited, "setting 'delta.constraints.positive'"))
    for table, words in cases:
        version = deltalake.DeltaTable(str(table)).version()
        with pytest.raises(OutputError, match=words):
            commit_to(sink_at(table), change_of(ROWS))
        assert deltalake.DeltaTable(str(table)).version() == version
    with pytest.raises(ConfigError, match=r"cannot hold columns \['a b'\].*names with one of"):
        sink_at(tmp_path / "names").fit(pa.schema([("a b", pa.int64())]))


def test_rows_and_columns_of_others_stay(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"label": ["theirs"]}))
    first = change_of(ROWS)
    commit_to(sink_at(tmp_path), first)
    commit_to(sink_at(tmp_path), change_of(ROWS.slice(1), revision=1, replaces=first))
    assert [row["label"] for row in rows_of(tmp_path)].count("theirs") == 1
    assert [(row["row_id"], row["label"]) for row in rows_of(tmp_path) if row["row_id"]] == [("b", None)]


def test_files_that_others_have_rewritten_are_not_guessed(tmp_path: Path) -> None:
    first = change_of(ROWS)
    commit_to(sink_at(tmp_path), first)
    commit_to(sink_at(tmp_path), change_of(ROWS, position=1))
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    commit_to(sink_at(tmp_path), change_of(ROWS, position=2))
    with pytest.raises(OutputError, match=r"not in the table any more .*OPTIMIZE"):
        commit_to(sink_at(tmp_path), change_of(ROWS, revision=1, replaces=first))
    assert len(rows_of(tmp_path)) == 6
