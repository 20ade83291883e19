"""An Iceberg table as a sink: types, name mapping, tables and commits of others, catalogs and stores."""

from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, OutputError, SinkError
from pipeline.sinks.table_sink import ConflictError, TableSink, open_sink
from testing.pipeline.s3 import CREDENTIAL, S3Server

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import LongType, NestedField, StringType

from testing.pipeline.tables import NAME, RUN, catalog_in, change_of, commit_to

ROWS = pa.table({"row_id": ["a", "b"], "x": pa.array([1, None], pa.int64())})


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return catalog_in(tmp_path)


def sink_of(properties: dict[str, str]) -> TableSink:
    return open_sink("iceberg", NAME, {}, properties)


def table_of(properties: dict[str, str]) -> Table:
    return load_catalog(**properties).load_table(NAME)


def created(own: dict[str, str], schema: Any, **options: Any) -> Table:
    """A table that somebody else makes."""
    catalog = load_catalog(**own)
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table(NAME, schema=schema, **options)


def rows_of(properties: dict[str, str]) -> list[dict[str, Any]]:
    return table_of(properties).scan().to_arrow().to_pylist()


def test_rows_of_all_types_come_back(properties: dict[str, str]) -> None:
    moment = datetime.datetime(2026, 11, 30, 1, 2, 3, 456789)
    rows = pa.table(
        {
            "a.b": pa.array([1, None], pa.int8()),
            "with ,;{}= spaces": pa.array([1, None], pa.int16()),
            "text": pa.array(["x", None], pa.large_string()),
            "word": pa.array(["x", None]).dictionary_encode(),
            "data": pa.array([b"x", None], pa.large_binary()),
            "yes": pa.array([True, None]),
            "day": pa.array([moment.date(), None]),
            "plain": pa.array([moment, None], pa.timestamp("us")),
            "zoned": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(38, 2)),
            "float": pa.array([0.1, None], pa.float32()),
            "lists": pa.array([[[1, None], []], None], pa.large_list(pa.list_(pa.int32()))),
            "deep": pa.array([{"a": [{"b": "x"}], "c": 0.5}, None]),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    commit_to(sink_of(properties), change_of(rows))
    assert rows_of(properties) == rows.to_pylist()


def test_the_revision_is_kept_in_the_transaction_and_outlives_snapshots(properties: dict[str, str]) -> None:
    sink, first = sink_of(properties), change_of(ROWS)
    commit_to(sink, first)
    commit_to(sink, change_of(ROWS, position=2))
    commit_to(sink, change_of(ROWS.slice(1), revision=1, replaces=first))
    table = table_of(properties)
    assert len(table.metadata.metadata_log) == len(table.snapshots()) == 3
    assert [snapshot.summary["wedlm.publication"] for snapshot in table.snapshots() if snapshot.summary] == [
        "data-000000", "data-000002", "data-000000-r001",
    ]  # fmt: skip
    table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]).commit()
    sink.look()
    assert sink.done(RUN, range(4)) == {0: 1, 2: 0}
    assert sink.done("another", range(4)) == {}
    assert sorted(row["row_id"] for row in rows_of(properties)) == ["a", "b", "b"]


def test_a_commit_in_between_is_a_conflict_and_is_not_repeated_on_top(properties: dict[str, str]) -> None:
    sink, other = sink_of(properties), sink_of(properties)
    commit_to(sink, change_of(ROWS))
    sink.look()
    commit_to(other, change_of(ROWS, position=1))
    with pytest.raises(ConflictError):
        sink.commit(change_of(ROWS, position=1))
    commit_to(other, change_of(pa.table({"y": [1]}), position=2))
    with pytest.raises(ConflictError):
        sink.fit(pa.schema([("z", pa.int64())]))
    assert len(rows_of(properties)) == 5
    assert len(table_of(properties).snapshots()) == 3
    assert "commit.retry.num-retries" not in table_of(properties).properties


class RacedCatalog(SqlCatalog):
    """Another process makes the catalog's own tables and the namespace at the same time."""

    opened = 0

    def create_tables(self) -> None:
        super().create_tables()
        type(self).opened += 1
        raise RuntimeError("table iceberg_tables already exists")

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        self.create_namespace(namespace)
        raise RuntimeError("UNIQUE constraint failed")


def test_a_catalog_and_a_namespace_that_another_process_makes_at_once(properties: dict[str, str]) -> None:
    raced = {**properties, "py-catalog-impl": f"{__name__}.{RacedCatalog.__name__}"}
    commit_to(sink_of(raced), change_of(ROWS))
    assert RacedCatalog.opened == 1
    assert rows_of(properties) == ROWS.to_pylist()


def test_a_table_that_is_dropped_meanwhile_is_a_conflict_and_made_again(properties: dict[str, str]) -> None:
    sink = sink_of(properties)
    commit_to(sink, change_of(ROWS))
    sink.look()
    load_catalog(**properties).drop_table(NAME)
    with pytest.raises(ConflictError):
        sink.commit(change_of(ROWS, position=1))
    created(properties, ROWS.schema)
    with pytest.raises(ConflictError):
        sink.commit(change_of(ROWS, position=1))
    sink.look()
    assert (sink.is_empty(), sink.done(RUN, [0])) == (True, {})
    commit_to(sink, change_of(ROWS))
    assert rows_of(properties) == ROWS.to_pylist()


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (pa.schema([("row_id", pa.int64())]), {}, "column 'row_id' is long there, and string in the output"),
        (
            Schema(NestedField(1, "z", LongType(), required=True)),
            {},
            "column 'z' must not be null there, and the output lacks it",
        ),
        (Schema(NestedField(1, "x", LongType(), required=True)), {}, "column 'x' must not be null there"),
        (
            Schema(NestedField(1, "row_id", StringType())),
            {"partition_spec": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "row_id"))},
            r"it is partitioned by \['row_id'\]",
        ),
    ],
)
def test_a_table_that_cannot_take_the_files_is_left_alone(
    properties: dict[str, str], schema: Any, options: dict[str, Any], words: str
) -> None:
    place = created(properties, schema, **options).metadata_location
    with pytest.raises(OutputError, match=words):
        commit_to(sink_of(properties), change_of(ROWS))
    assert table_of(properties).metadata_location == place


def test_a_struct_with_other_fields_and_a_renamed_column_are_refused(properties: dict[str, str]) -> None:
    rows = pa.table({"deep": [{"a": 1}], "text": ["x"]})
    commit_to(sink_of(properties), change_of(rows))
    with pytest.raises(OutputError, match=r"column 'deep' is struct<.*a: optional long> there, and struct<.*b: int64>"):
        commit_to(sink_of(properties), change_of(pa.table({"deep": [{"a": 1, "b": 1}]}), position=1))
    with table_of(properties).update_schema() as update:
        update.rename_column("text", "answer")
    with pytest.raises(OutputError, match="column 'text' was renamed or dropped there"):
        commit_to(sink_of(properties), change_of(rows, position=1))
    assert rows_of(properties) == [{"deep": {"a": 1}, "answer": "x"}]


def test_rows_and_columns_of_others_stay(properties: dict[str, str]) -> None:
    created(properties, pa.schema([("label", pa.string())])).append(pa.table({"label": ["theirs"]}))
    first = change_of(ROWS)
    commit_to(sink_of(properties), first)
    table_of(properties).append(pa.table({"label": ["more"], "x": [7]}))
    commit_to(sink_of(properties), change_of(ROWS.slice(1), revision=1, replaces=first))
    assert sorted(map(str, (tuple(row.values()) for row in rows_of(properties)))) == [
        "('more', None, 7)", "('theirs', None, None)", "(None, 'b', None)",
    ]  # fmt: skip


@pytest.mark.parametrize("layout", [{}, {"write.object-storage.partitioned-paths": "false"}])
def test_files_that_others_have_rewritten_are_not_guessed(properties: dict[str, str], layout: dict[str, str]) -> None:
    created(properties, ROWS.schema, properties={"write.object-storage.enabled": "true", **layout})
    first = change_of(ROWS)
    commit_to(sink_of(properties), first)
    second = change_of(ROWS, revision=1, replaces=first)
    commit_to(sink_of(properties), second)
    table_of(properties).delete("row_id = 'a'")
    commit_to(sink_of(properties), change_of(ROWS, position=1))
    with pytest.raises(OutputError, match=r"data-000000-r002 takes the place of files .* not in the table any more"):
        commit_to(sink_of(properties), change_of(ROWS, revision=2, replaces=second))
    assert sorted(row["row_id"] for row in rows_of(properties)) == ["a", "b", "b"]


def test_a_catalog_that_does_not_open_is_named_without_credentials(tmp_path: Path, properties: dict[str, str]) -> None:
    for uri in ("postgresql://me:hunter2hunter2@127.0.0.1:9/db", "odd:hunter2hunter2"):
        with pytest.raises(ConfigError, match="the catalog does not open") as error:
            open_sink("iceberg", NAME, {}, {"uri": uri, "token": "hunter2hunter2"})
        assert "hunter2" not in str(error.value)
    with pytest.raises(ConfigError, match=r"table_options\.uri refers to {env: NO_SUCH_VARIABLE}"):
        open_sink("iceberg", NAME, {}, {"uri": {"env": "NO_SUCH_VARIABLE"}})
    with pytest.raises(OutputError, match=r"No default path is set.*Check the options and columns of the table"):
        commit_to(open_sink("iceberg", NAME, {}, {"uri": properties["uri"]}), change_of(ROWS))
    (tmp_path / "uri").write_text(f"{properties['uri']}\n")
    commit_to(open_sink("iceberg", NAME, {}, {**properties, "uri": {"file": str(tmp_path / "uri")}}), change_of(ROWS))
    assert len(rows_of(properties)) == 2
    Path(table_of(properties).metadata_location).write_text("no json")
    with pytest.raises(OutputError, match=f"{NAME}: the Iceberg table cannot be read"):
        sink_of(properties).look()


def test_a_warehouse_on_a_store(properties: dict[str, str], s3: S3Server) -> None:
    properties |= {
        "warehouse": s3.bucket(f"b{uuid.uuid4().hex[:12]}"), "s3.endpoint": s3.endpoint, "s3.region": "us-east-1",
        "s3.access-key-id": CREDENTIAL, "s3.secret-access-key": CREDENTIAL,
    }  # fmt: skip
    first = change_of(ROWS)
    commit_to(sink_of(properties), first)
    commit_to(sink_of(properties), change_of(ROWS.slice(1), revision=1, replaces=first))
    assert rows_of(properties) == ROWS.slice(1).to_pylist()
    assert table_of(properties).location().startswith("s3://")
    gone = sink_of({**properties, "warehouse": "s3://none"})
    load_catalog(**properties).drop_table(NAME)
    with pytest.raises(SinkError, match=r"not committed .*The same command continues") as error:
        commit_to(gone, first)
    assert CREDENTIAL not in str(error.value)
