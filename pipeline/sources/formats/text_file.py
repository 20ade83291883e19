"""Text files, one prompt each. They have to be asked for: folders of tables hold notes with such names."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.sources.limits import MAX_ROW_BYTES, long_row_rule
from pipeline.sources.source import FileSource
from pipeline.sources.tabulate import tabulate
from pipeline.sources.text import open_text, with_compression
from pipeline.types import Slice, SourceFile

_SCHEMA = pa.schema([("prompt", pa.string())])
_KEPT_BYTES = 4096


class TextFileSource(FileSource):
    """A row for each file: its text, as it is, in the column ``prompt``."""

    label = "Text"
    suffixes = with_compression(".txt")
    input_format = "text"

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> TextFileSource:
        """These files; they are not opened."""
        return cls(files, _SCHEMA, options)

    def file_slices(self, number: int, rows: int) -> Iterator[Slice]:
        """The one row of a file."""
        yield Slice(file=number, first_row=0, num_rows=1, stop=self.files[number].size)

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        for piece in slices:
            yield tabulate([self._row(self.files[piece.file].path)], self.file_schema)

    def _row(self, path: str) -> Any:
        """A mapping, or a ``ValueError(reason, text)`` in its place."""
        with open_text(path, self.options) as stream:
            data = stream.read(MAX_ROW_BYTES + 1)
        shown = data[:_KEPT_BYTES].decode("utf-8", "backslashreplace")
        if len(data) > MAX_ROW_BYTES:
            return ValueError(long_row_rule(len(data)), shown)
        try:
            return {"prompt": data.removeprefix(codecs.BOM_UTF8).decode("utf-8")}
        except UnicodeDecodeError as error:
            return ValueError(f"not text in UTF-8: {error}", shown)
