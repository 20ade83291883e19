"""Parquet files, with one schema over all of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.sources.source import HIDDEN, FileSource, cut, damage_named, each_of, open_input, read_with_retries
from pipeline.sources.source_schemas import common_schema
from pipeline.storage.urls import READ_AHEAD_BYTES, is_url, local_path
from pipeline.types import Slice, SourceFile

_BATCH_ROWS = 4096
_BUFFER_BYTES = 2**20
_MOST_ROW_BYTES = 256 * 2**20
"""Rows of a row group, on average: a file of some kilobytes may decompress to one cell of gigabytes."""
_SMALL_ROW_GROUP_BYTES = 32 * 2**20


class ParquetSource(FileSource):
    """Rows of Parquet files. Row counts come from the footers: planning reads no data."""

    label = "Parquet"
    suffixes = (".parquet", ".pq")
    magic = b"PAR1"

    def __init__(
        self,
        files: Sequence[SourceFile],
        schema: pa.Schema,
        options: Mapping[str, Any],
        starts: Sequence[tuple[int, ...]],
    ) -> None:
        """``starts``: of each file, the first row of each row group, then the number of rows."""
        super().__init__(files, schema, options)
        self._starts = tuple(starts)

    @classmethod
    def over(
        cls, files: Sequence[SourceFile], options: Mapping[str, Any], schema: pa.Schema | None = None
    ) -> ParquetSource:
        """These files; a column that some lack is null there.

        ``schema``: exact types of rows in memory, which may be other types than Parquet has.

        Raises:
            SourceError: a damaged file.
        """
        shapes = each_of(files, lambda file: read_with_retries(lambda: _shape(file, options), file.path), footers=True)
        if schema is None:
            found, faults = common_schema(
                files, [own for own, _ in shapes], lambda file, name: _column(file, name, options)
            )
        else:
            faults = {}
            visible = [field for field in schema if field.name not in HIDDEN]
            found = pa.schema(visible, metadata=schema.metadata)
        source = cls(files, found, options, [starts for _, starts in shapes])
        source.contradictions = faults
        return source

    def file_slices(self, number: int, rows: int) -> Iterator[Slice]:
        """Slices of a file in order; a group is the row group that a slice begins in."""
        starts = self._starts[number]
        for first in range(0, starts[-1], rows):
            group = bisect.bisect_right(starts, first) - 1
            yield Slice(file=number, first_row=first, num_rows=min(rows, starts[-1] - first), group=group)

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """Stream the row groups that the slices touch."""
        number = slices[0].file
        starts = self._starts[number]
        begin = bisect.bisect_right(starts, slices[0].first_row) - 1
        end = bisect.bisect_left(starts, slices[-1].first_row + slices[-1].num_rows)
        with _open(self.files[number].path, self.options) as file:
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=list(range(begin, end)))
            tables = (self.conform(pa.Table.from_batches([b])) for b in batches)
            yield from cut(self.files[number].path, tables, starts[begin], slices)


@contextmanager
def _open(path: str, options: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """A column's pages as they are needed; from a store, whole row groups by few requests where they are small."""
    if not is_url(path):
        # Arrow's own file, not Python's: of that it would read each column of a row group as one piece.
        with pq.ParquetFile(
            str(local_path(path)), buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:  # fmt: skip
            yield file
        return
    with open_input(path, options) as opened:
        metadata = pq.read_metadata(opened)
        sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        small = max(sizes, default=0) <= _SMALL_ROW_GROUP_BYTES
        buffer = 0 if small else READ_AHEAD_BYTES
        with pq.ParquetFile(
            opened, metadata=metadata, pre_buffer=small, buffer_size=buffer, page_checksum_verification=True
        ) as file:  # fmt: skip
            yield file


def _column(file: SourceFile, name: str, options: Mapping[str, Any]) -> Iterator[pa.Array]:
    with damage_named(file.path), _open(file.path, options) as parquet:
        for batch in parquet.iter_batches(columns=[name]):
            yield batch.column(name)


def _shape(file: SourceFile, options: Mapping[str, Any]) -> tuple[pa.Schema, tuple[int, ...]]:
    """Schema, and the first row of each row group.

    Raises:
        SourceError: a row is too long; some kilobytes may decompress to gigabytes.
    """
    with open_input(file.path, options) as opened, pq.ParquetFile(opened) as parquet:
        groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
        for group in groups:
            size = group.total_byte_size // max(1, group.num_rows)
            if size > _MOST_ROW_BYTES:
                raise SourceError(
                    f"{file.path}: its rows have {size} bytes on average, and {_MOST_ROW_BYTES} is the most. Leave "
                    "such rows, or the column that makes them long, out of the file."
                )
        return parquet.schema_arrow, tuple(itertools.accumulate((own.num_rows for own in groups), initial=0))
