"""The formats of published parts: Parquet, Arrow IPC and JSON Lines; and the check that one can hold a schema."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.sinks.json_values import from_json_values, to_json_values
from pipeline.sinks.part_format import PartFormat, cast_table

_ROW_GROUP_BYTES = 64 * 2**20
"""Of Arrow data, about, in a row group of a Parquet file."""
_BATCH_BYTES = 4 * 2**20
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)
_BATCH_ROWS = 4096


class _BufferedPart:
    """Holds rows until there are ``most`` bytes of them; None: until the end."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._held: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._held.append(table)
        self._bytes += table.nbytes
        if self._most is not None and self._bytes >= self._most:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._put(pa.concat_tables(self._held))
        self._held, self._bytes = [], 0

    def _put(self, table: pa.Table) -> None:
        raise NotImplementedError


class _ParquetPart(_BufferedPart):
    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        super().__init__(_ROW_GROUP_BYTES)
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def _put(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _parquet_tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    """One table per batch of a row group."""
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches():
            yield cast_table(pa.Table.from_batches([batch]), schema)


class _IpcPart(_BufferedPart):
    """A file has one dictionary per column, so tables with dictionaries are buffered until the end."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        self._holds_all = any(_has_dictionary(field.type) for field in schema)
        super().__init__(None if self._holds_all else _BATCH_BYTES)
        self._writer = pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema, options=_OPTIONS)

    def _put(self, table: pa.Table) -> None:
        self._writer.write_table(table if self._holds_all else table.combine_chunks())

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _ipc_tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    """One table per batch."""
    with pa.ipc.open_file(pa.PythonFile(file, mode="r")) as reader:
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate(full=True)  # a damaged offset ends in an error that Python cannot name
            yield cast_table(pa.Table.from_batches([batch]), schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _json_tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    """One table per few thousand rows; one empty table if there are no rows."""
    lines = iter(file)
    held = list(islice(lines, _BATCH_ROWS))
    while True:
        rows = [json.loads(line) for line in held]
        columns = [from_json_values([_cell(row, field) for row in rows], field.type) for field in schema]
        yield pa.table(columns, schema=schema)
        held = list(islice(lines, _BATCH_ROWS))
        if not held:
            return


def _cell(row: Mapping[str, Any], field: pa.Field) -> Any:
    """A value; null where the table gained the column after the row was written."""
    return row.get(field.name) if field.nullable else row[field.name]


class _JsonlPart:
    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            columns = [to_json_values(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                text = json.dumps(dict(zip(self._names, row, strict=True)), ensure_ascii=False, allow_nan=False)
                self._file.write(text.encode() + b"\n")

    def close(self) -> None:
        """Nothing is buffered."""


FORMATS: Mapping[str, PartFormat] = {
    format.name: format
    for format in (
        PartFormat(name="parquet", suffix=".parquet", open=_ParquetPart, tables=_parquet_tables),
        PartFormat(name="ipc", suffix=".arrow", open=_IpcPart, tables=_ipc_tables),
        PartFormat(name="jsonl", suffix=".jsonl", open=_JsonlPart, tables=_json_tables, has_types=False),
    )
}
"""Name in ``RunConfig.output_format`` -> format."""
_MOST_LEVELS = 60
"""Units are staged in Arrow's own format, which holds rows of 63 levels (and empty tables of twice as many)."""


def check_format(name: str, schema: pa.Schema) -> None:
    """Check that the format can hold every column.

    Raises:
        ConfigError: names the columns that it cannot hold.
    """
    deep = [field.name for field in schema if _depth(field.type) > _MOST_LEVELS]
    if deep:
        raise ConfigError(f"columns {deep}: nested too deeply for any format. Flatten them, or leave them out with "
                          "columns=[...].")  # fmt: skip
    bad = [f"{field.name}: {field.type}" for field in schema if not _holds(name, field.type)]
    if bad:
        raise ConfigError(
            f"output_format={name!r}: it cannot hold columns {bad}. Use output_format='ipc', or leave them out with "
            "columns=[...]."
        )


def _depth(kind: pa.DataType) -> int:
    """Nesting depth of lists, structs and maps; stops counting above the limit."""
    level, kinds = 0, [kind]
    while kinds and level <= _MOST_LEVELS:
        kinds = [inner.field(i).type for inner in kinds for i in range(inner.num_fields)]
        level += bool(kinds)
    return level


@functools.lru_cache(1000)  # scheduled runs and stages of a chain ask for the same columns again and again
def _holds(name: str, kind: pa.DataType) -> bool:
    """Whether an empty column can be written and read back."""
    format = FORMATS[name]
    schema = pa.schema([("column", kind)])
    file = io.BytesIO()
    try:
        part = format.open(file, schema)
        part.write(schema.empty_table())
        part.close()
        list(format.tables(io.BytesIO(file.getvalue()), schema))
    except (pa.ArrowException, TypeError, OSError):  # too deep nesting is an OSError
        return False
    return True
