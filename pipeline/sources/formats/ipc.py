"""Arrow IPC files (Feather version 2) and streams, with one schema over all of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.source import FileSource, cut, damage_named, each_of, open_input, read_with_retries
from pipeline.sources.source_schemas import common_schema
from pipeline.types import Slice, SourceFile

_FIRST_FEATHER = b"FEA1"
_SEQUENTIAL = -1
"""Group of a stream's slices: each is reached only by reading all that is before it."""


class IpcSource(FileSource):
    """Rows of Arrow files. A file gives its batches at random, so a batch is a group; a stream is one group."""

    label = "Arrow"
    suffixes = (".arrow", ".feather", ".ipc", ".arrows")
    magic = b"ARROW1"

    def __init__(
        self,
        files: Sequence[SourceFile],
        schema: pa.Schema,
        options: Mapping[str, Any],
        starts: Sequence[tuple[int, ...]],
    ) -> None:
        """``starts``: of each file, the first row of each batch, then the number of rows."""
        super().__init__(files, schema, options)
        self._starts = tuple(starts)

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> IpcSource:
        """These files; a column that some lack is null there.

        Raises:
            SourceError: a damaged file.
        """
        shapes = each_of(files, lambda file: read_with_retries(lambda: _shape(file, options), file.path), footers=True)
        schema, faults = common_schema(
            files, [own for own, _ in shapes], lambda file, name: _column(file, name, options)
        )
        source = cls(files, schema, options, [starts for _, starts in shapes])
        source.contradictions = faults
        return source

    def file_slices(self, number: int, rows: int) -> Iterator[Slice]:
        """Slices of a file in order."""
        starts = self._starts[number]
        is_file = _is_file(self.files[number].path, self.options)
        for first in range(0, starts[-1], rows):
            group = bisect.bisect_right(starts, first) - 1 if is_file else _SEQUENTIAL
            yield Slice(file=number, first_row=first, num_rows=min(rows, starts[-1] - first), group=group)

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """Stream the batches that the slices touch; of a stream, all that come before too."""
        number = slices[0].file
        starts = self._starts[number]
        begin = bisect.bisect_right(starts, slices[0].first_row) - 1
        with _batches(self.files[number].path, self.options, begin) as batches:
            tables = (self.conform(pa.Table.from_batches([b])) for b in batches)
            yield from cut(self.files[number].path, tables, starts[begin], slices)


@contextmanager
def _batches(path: str, options: Mapping[str, Any], begin: int = 0) -> Iterator[Iterator[pa.RecordBatch]]:
    """The batches of a file or stream from number ``begin`` on."""
    with open_input(path, options) as file:
        magic = file.read(len(IpcSource.magic))
        file.seek(0)
        if magic == IpcSource.magic:
            with pa.ipc.open_file(pa.PythonFile(file, mode="r")) as reader:
                yield (reader.get_batch(i) for i in range(begin, reader.num_record_batches))
        else:
            with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as stream:
                yield itertools.islice(stream, begin, None)


def _column(file: SourceFile, name: str, options: Mapping[str, Any]) -> Iterator[pa.Array]:
    with damage_named(file.path), _batches(file.path, options) as batches:
        for batch in batches:
            yield batch.column(name)


def _is_file(path: str, options: Mapping[str, Any]) -> bool:
    with open_input(path, options) as file:
        return file.read(len(IpcSource.magic)) == IpcSource.magic


def _shape(file: SourceFile, options: Mapping[str, Any]) -> tuple[pa.Schema, tuple[int, ...]]:
    """Schema, and the first row of each batch. Reads one column of a file, and all of a stream."""
    with open_input(file.path, options) as opened:
        magic = opened.read(len(IpcSource.magic))
        if magic.startswith(_FIRST_FEATHER):
            raise SourceError(f"{file.path}: it is Feather of version 1. Write it as version 2, or as Parquet.")
        if magic != IpcSource.magic:
            opened.seek(0)
            with pa.ipc.open_stream(pa.PythonFile(opened, mode="r")) as stream:
                return stream.schema, _starts(batch.num_rows for batch in stream)
        opened.seek(0)
        schema = pa.ipc.open_file(pa.PythonFile(opened, mode="r")).schema
        opened.seek(0)
        narrow = pa.ipc.IpcReadOptions(included_fields=[_narrowest(schema)] if schema.names else [])
        reader = pa.ipc.open_file(pa.PythonFile(opened, mode="r"), options=narrow)
        return schema, _starts(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def _starts(sizes: Iterator[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(sizes, initial=0))


def _narrowest(schema: pa.Schema) -> int:
    """The column that is cheapest to read, of numbers if possible."""
    widths = [_width(field.type) for field in schema]
    return widths.index(min(widths))


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:
        return 2**20
