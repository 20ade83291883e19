"""Parquet parts: zstd, one row group per about 64 MiB of Arrow data."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.sinks.part_format import cast_table

_ROW_GROUP_BYTES = 64 * 2**20


class ParquetFormat:
    """The default format of published parts."""

    name = "parquet"
    suffix = ".parquet"

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> _ParquetPart:
        """Begin a part file."""
        return _ParquetPart(file, schema)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """One table per batch of a row group."""
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches():
                yield cast_table(pa.Table.from_batches([batch]), schema)

    def card(self, schema: pa.Schema) -> None:
        """None: the parts hold their schema."""


class _ParquetPart:
    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._held: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._held.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            whole = pa.concat_tables(self._held)
            self._writer.write_table(whole, row_group_size=max(1, whole.num_rows))
        self._held, self._bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
