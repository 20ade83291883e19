"""The formats of published parts (Parquet, Arrow IPC, JSON Lines), and the check that one can hold a schema."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.sinks.json_values import from_json_values, to_json_values

_ROW_GROUP_BYTES = 64 * 2**20
"""Of Arrow data, about, in a row group of a Parquet file."""
_BATCH_BYTES = 4 * 2**20
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)
_BATCH_ROWS = 4096


class PartWriter(Protocol):
    """An open part file."""

    def write(self, table: pa.Table) -> None:
        """Append rows; the schema is the part's."""
        ...

    def close(self) -> None:
        """Finish the file; the caller closes the stream underneath."""
        ...


@dataclass(frozen=True, kw_only=True)
class PartFormat:
    """A file format that common readers understand. Picklable.

    Attributes:
        name: its name in ``RunConfig.output_format``.
        suffix: file name suffix, with its dot.
        open: begins a part file.
        tables: reads a part back in tables of bounded size, with exactly the types of the schema.
        has_types: whether the files hold the types of their columns; else readers need a card
            (:mod:`pipeline.sinks.dataset_card`).
    """

    name: str
    suffix: str
    open: Callable[[BinaryIO | io.BufferedIOBase, pa.Schema], PartWriter]
    tables: Callable[[BinaryIO, pa.Schema], Iterator[pa.Table]]
    has_types: bool = True


class HashedFile(io.BufferedIOBase):
    """A stream that hashes written bytes and passes them on.

    After a failure, a garbage-collected writer may still write the end of its file; a closed file ignores that.
    """

    def __init__(self, file: BinaryIO) -> None:
        """``file``: the file to write to."""
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Hash and pass on."""
        data = memoryview(data)
        self._digest.update(data)
        self._size += data.nbytes
        if not self._file.closed:
            self._file.write(data)
        return int(data.nbytes)

    def tell(self) -> int:
        """Number of bytes written."""
        return self._size

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written."""
        return self._digest.hexdigest()


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with the columns and types of ``schema``; missing columns are null.

    Raises:
        pa.ArrowException: a value does not fit.
    """
    there = dict(zip(table.column_names, table.columns, strict=True))
    arrays = [
        _cast(there[field.name], field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return _cast(pc.run_end_decode(column), kind)
    if pa.types.is_dictionary(column.type) and pa.types.is_nested(column.type.value_type):
        return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type).cast(
            kind
        )
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return pa.chunked_array(map(_without_view, column.chunks)).cast(kind)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(kind)


def _without_view(lists: pa.Array) -> pa.Array:
    """Lists in place of list views. Arrow's own cast gives too few offsets if a list is null."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    return pa.LargeListArray.from_arrays(offsets, lists.flatten(), mask=lists.is_null())


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
