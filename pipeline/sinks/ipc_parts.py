"""Arrow IPC parts (Feather version 2); they keep every Arrow type."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from pipeline.sinks.part_format import cast_table

_BATCH_BYTES = 4 * 2**20
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)


class IpcFormat:
    """Arrow IPC files, zstd."""

    name = "ipc"
    suffix = ".arrow"

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> _IpcPart:
        """Begin a part file."""
        return _IpcPart(file, schema)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """One table per batch."""
        with pa.ipc.open_file(pa.PythonFile(file, mode="r")) as reader:
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate(full=True)  # a damaged offset ends in an error that Python cannot name
                yield cast_table(pa.Table.from_batches([batch]), schema)

    def card(self, schema: pa.Schema) -> None:
        """None: the parts hold their schema."""


class _IpcPart:
    """A file has one dictionary per column, so tables with dictionaries are buffered until the end."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema, options=_OPTIONS)
        self._holds_all = any(_has_dictionary(field.type) for field in schema)
        self._held: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._held.append(table)
        self._bytes += table.nbytes
        if not self._holds_all and self._bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            whole = pa.concat_tables(self._held)
            if not self._holds_all:
                whole = whole.combine_chunks()
            self._writer.write_table(whole)
        self._held, self._bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
