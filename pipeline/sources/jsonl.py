"""JSON Lines files. Column types come from the first rows; a line that does not fit them is a bad row."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.base import patiently
from pipeline.sources.tabulate import infer_schema
from pipeline.sources.text import TextSource, open_text, with_compression
from pipeline.types import SourceFile

__all__ = ["JsonlSource"]

_INFER_ROWS = 20_000


class JsonlSource(TextSource):
    """Rows of JSON Lines files, plain or compressed. Blank lines are no rows."""

    label = "JSON Lines"
    suffixes = with_compression(".jsonl", ".ndjson", ".json")

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> JsonlSource:
        """These files; types are inferred from the first 20,000 rows of each.

        Raises:
            SourceError: a damaged file, no row with a column, or files that contradict each other.
        """
        schemas = [patiently(functools.partial(_infer, file, options), file.path) for file in files]
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SourceError(f"the input's files disagree on column types ({error}). Mend or split them.") from error
        if not schema.names:
            raise SourceError(f"{files[0].path}: no row is a JSON object. Write one object per line.")
        return cls(files, schema, options)

    def _ends(self, stream: BinaryIO, file: int) -> Iterator[int]:
        position = 0
        yield position
        for line in stream:
            position += len(line)
            if line.strip():
                yield position

    def _parse(self, data: bytes, file: int) -> list[Any]:
        return [_parse(line) for line in data.split(b"\n") if line.strip()]


def _parse(line: bytes) -> Any:
    """The value on a line, or a ``ValueError(reason, line)`` in its place."""
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return ValueError(f"not a line of JSON in UTF-8: {error}", line.decode("utf-8", "backslashreplace"))


def _infer(file: SourceFile, options: Mapping[str, Any]) -> pa.Schema:
    with open_text(file.path, options) as lines:
        return infer_schema([_parse(line) for line in islice(lines, _INFER_ROWS) if line.strip()])
