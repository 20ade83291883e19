"""The protocol of a published file format: open a part, write tables, read them back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc


class PartWriter(Protocol):
    """An open part file."""

    def write(self, table: pa.Table) -> None:
        """Append rows; the schema is the part's."""
        ...

    def close(self) -> None:
        """Finish the file; the caller closes the stream underneath."""
        ...


class PartFormat(Protocol):
    """A file format that common readers understand. Picklable."""

    @property
    def name(self) -> str:
        """Its name in ``RunConfig.output_format``."""
        ...

    @property
    def suffix(self) -> str:
        """File name suffix, with its dot."""
        ...

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> PartWriter:
        """Begin a part file."""
        ...

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read a part back in tables of bounded size, with exactly the types of ``schema``."""
        ...

    def card(self, schema: pa.Schema) -> bytes | None:
        """Files that readers need in addition to the parts (:mod:`pipeline.sinks.hub_card`); None without any."""
        ...


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
        _cast(there[field.name], field.type) if field.name in there else _nulls(table.num_rows, field)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _nulls(rows: int, field: pa.Field) -> pa.Array:
    return pa.nulls(rows, field.type)


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
