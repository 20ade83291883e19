"""Parquet files, with one schema over all of them."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.sources.base import HIDDEN, FileSource, cut, find_files
from pipeline.types import Slice, SourceFile

__all__ = ["SUFFIXES", "ParquetSource"]

SUFFIXES = (".parquet", ".pq")
_BATCH_ROWS = 4096


class ParquetSource(FileSource):
    """Rows of Parquet files. Row counts come from the footers: planning reads no data."""

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> ParquetSource:
        """The files of a path, folder or glob.

        Raises:
            SourceError: no files, a damaged one, or files whose columns contradict each other.
        """
        return cls.over(find_files(path, SUFFIXES))

    @classmethod
    def over(cls, files: Sequence[SourceFile]) -> ParquetSource:
        """These files; a column that some lack is null there."""
        schemas = []
        for file in files:
            try:
                schemas.append(pq.read_schema(file.path))
            except (pa.ArrowException, OSError) as error:
                raise SourceError(f"{file.path}: not a readable Parquet file ({error}). Remove or mend it.") from error
        try:
            whole = pa.unify_schemas(schemas)
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                f"the input's files disagree on column types ({error}). Cast them to one type."
            ) from error
        visible = [field for field in whole if field.name not in HIDDEN]
        return cls(files, pa.schema(visible, metadata=schemas[0].metadata))

    def slices(self, rows: int) -> Iterator[Slice]:
        """Slices in input order; a group is the row group that a slice begins in."""
        for number, file in enumerate(self.files):
            starts = _row_group_starts(pq.read_metadata(file.path))
            for first in range(0, starts[-1], rows):
                group = bisect.bisect_right(starts, first) - 1
                yield Slice(file=number, first_row=first, num_rows=min(rows, starts[-1] - first), group=group)

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """Stream the row groups that the slices touch."""
        with pq.ParquetFile(self.files[slices[0].file].path) as file:
            starts = _row_group_starts(file.metadata)
            begin = bisect.bisect_right(starts, slices[0].first_row) - 1
            end = bisect.bisect_left(starts, slices[-1].first_row + slices[-1].num_rows)
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=list(range(begin, end)))
            yield from cut((self._conform(pa.Table.from_batches([b])) for b in batches), starts[begin], slices)

    def _conform(self, table: pa.Table) -> pa.Table:
        hidden = [table.schema.field(name) for name in HIDDEN if name in table.column_names]
        arrays = [
            table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
            for f in self.schema
        ]
        return pa.table(
            [*arrays, *(table[f.name] for f in hidden)], schema=pa.schema([*self.schema, *hidden])
        )  # fmt: skip


def _row_group_starts(metadata: pq.FileMetaData) -> list[int]:
    """First row of each row group, then the number of rows."""
    sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return list(itertools.accumulate(sizes, initial=0))
