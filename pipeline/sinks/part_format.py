"""A published file format: open a part, write tables, read them back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sinks.dataset_card import card_of


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
        has_types: whether the files hold the types of their columns; else readers need a card.
    """

    name: str
    suffix: str
    open: Callable[[BinaryIO | io.BufferedIOBase, pa.Schema], PartWriter]
    tables: Callable[[BinaryIO, pa.Schema], Iterator[pa.Table]]
    has_types: bool = True

    def card(self, schema: pa.Schema) -> bytes | None:
        """File with the types of the columns (:mod:`pipeline.sinks.dataset_card`); None if the parts hold them."""
        return None if self.has_types else card_of(schema, f"data-*/*{self.suffix}")


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
