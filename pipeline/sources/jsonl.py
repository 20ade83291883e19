"""JSON Lines files. Column types come from the first rows; a line that does not fit them is a bad row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.base import FileSource, find_files
from pipeline.sources.tabulate import infer_schema, tabulate
from pipeline.types import Slice, SourceFile

__all__ = ["SUFFIXES", "JsonlSource"]

SUFFIXES = (".jsonl", ".ndjson", ".json")
_INFER_ROWS = 20_000
_UNITS_PER_GROUP = 64


class JsonlSource(FileSource):
    """Rows of JSON Lines files. Blank lines are no rows; planning reads the files once to count lines."""

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> JsonlSource:
        """The files of a path, folder or glob; types are inferred from the first 20,000 rows of each file.

        Raises:
            SourceError: no files, no row with a column, or files that contradict each other.
        """
        files = find_files(path, SUFFIXES)
        try:
            schema = pa.unify_schemas([_infer(file) for file in files], promote_options="permissive")
        except pa.ArrowException as error:
            raise SourceError(f"the input's files disagree on column types ({error}). Mend or split them.") from error
        if not schema.names:
            raise SourceError(f"input={os.fspath(path)!r}: no row is a JSON object. Write one object per line.")
        return cls(files, schema)

    def slices(self, rows: int) -> Iterator[Slice]:
        """Slices in input order, by byte range; a group is 64 slices."""
        for number, file in enumerate(self.files):
            first = count = start = position = 0
            with open(file.path, "rb") as lines:
                for line in lines:
                    position += len(line)
                    count += bool(line.strip())
                    if count == rows:
                        yield self._slice(number, first, count, rows, start, position)
                        first, count, start = first + count, 0, position
            if count:
                yield self._slice(number, first, count, rows, start, position)

    @staticmethod
    def _slice(file: int, first: int, count: int, rows: int, start: int, stop: int) -> Slice:
        group = first // (rows * _UNITS_PER_GROUP)
        return Slice(file=file, first_row=first, num_rows=count, group=group, start=start, stop=stop)

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """Parse each slice's bytes."""
        with open(self.files[slices[0].file].path, "rb") as file:
            for piece in slices:
                file.seek(piece.start)
                lines = [line for line in file.read(piece.stop - piece.start).split(b"\n") if line.strip()]
                if len(lines) < piece.num_rows:
                    raise SourceError(
                        f"{file.name}: {len(lines)} rows at byte {piece.start}, {piece.num_rows} were planned: "
                        "it was changed during the run."
                    )
                yield tabulate([_parse(line) for line in lines[: piece.num_rows]], self.schema)


def _parse(line: bytes) -> Any:
    """The value on a line, or a ``ValueError(reason, line)`` in its place."""
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return ValueError(f"not a line of JSON in UTF-8: {error}", line.decode("utf-8", "backslashreplace"))


def _infer(file: SourceFile) -> pa.Schema:
    with open(file.path, "rb") as lines:
        return infer_schema([_parse(line) for line in islice(lines, _INFER_ROWS) if line.strip()])
