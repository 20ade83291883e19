"""JSON Lines files. Column types come from the first rows; a line that does not fit them is a bad row."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from pipeline.errors import SourceError
from pipeline.sources.json_text import JsonReader, Misfit
from pipeline.sources.limits import DEPTH_RULE, INFER_BYTES, long_row_rule
from pipeline.sources.source import each_of, read_with_retries
from pipeline.sources.tabulate import Inferred, columns_of, common_types, infer_types, misfits
from pipeline.sources.text import LongLine, TextSource, lines_of, open_text, with_compression
from pipeline.types import SourceFile

_INFER_ROWS = 20_000


class JsonlSource(TextSource):
    """Rows of JSON Lines files, plain or compressed. Blank lines are no rows."""

    label = "JSON Lines"
    suffixes = with_compression(".jsonl", ".ndjson", ".json")

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> JsonlSource:
        """These files; types are inferred from the first 20,000 rows of each.

        Raises:
            SourceError: a damaged file, or no row with a column.
        """
        source = cls(files, columns_of(_types(files, options)), options)
        if not source.file_schema.names and next(source.slices(1), None) is not None:  # of no rows, whoever needs some
            fault = f"the first one is {_kind(_sample(files[0], options, 1))}"
            raise SourceError(f"{files[0].path}: no row is a JSON object; {fault}. Write one object per line.")
        return source

    def _ends(self, stream: BinaryIO, file: int) -> Iterator[int]:
        position = 0
        yield position
        for line in lines_of(stream):
            position += len(line)
            if _is_row(line):
                yield position

    def _parse(self, lines: Iterable[bytes | LongLine], file: int) -> list[Any]:
        return list(parsed_rows(lines))


def parsed_rows(lines: Iterable[bytes | LongLine]) -> Iterator[Any]:
    """The value on each line that is not blank, or a ``ValueError(reason, line)`` in its place."""
    reader = JsonReader()
    return (_parse(line, reader) for line in lines if _is_row(line))


def _types(files: Sequence[SourceFile], options: Mapping[str, Any]) -> Inferred:
    """The types of all columns; where files have different ones, each file is asked whether its values come back."""

    def sample(file: SourceFile) -> list[Any]:
        return read_with_retries(lambda: _sample(file, options), file.path)

    found = each_of(files, lambda file: infer_types(sample(file)))
    common = common_types(found)
    own = {file.key: inferred.types for file, inferred in zip(files, found, strict=True)}
    unsure = [file for file in files if any(kind not in (None, common.types[n]) for n, kind in own[file.key].items())]
    faults = each_of(unsure, lambda file: misfits(sample(file), own[file.key], common.types))
    types = {name: None if any(name in fault for fault in faults) else kind for name, kind in common.types.items()}
    return replace(common, types=types)


def _is_row(line: bytes | LongLine) -> bool:
    return isinstance(line, LongLine) or bool(line.strip())


def _parse(line: bytes | LongLine, reader: JsonReader) -> Any:
    """The value on a line, or a ``ValueError(reason, line)`` in its place."""
    if isinstance(line, LongLine):
        return ValueError(long_row_rule(line.size), line.head.decode("utf-8", "backslashreplace"))
    try:
        value = reader.read(line.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
    except ValueError as error:
        return ValueError(f"not a line of JSON in UTF-8: {error}", _shown(line))
    except RecursionError:
        return ValueError(DEPTH_RULE, _shown(line))
    return ValueError(value.reason, _shown(line)) if isinstance(value, Misfit) else value


def _shown(line: bytes) -> str:
    return line.strip(b"\r\n").decode("utf-8", "backslashreplace")


def _kind(rows: Sequence[Any]) -> str:
    """The first row in words: the fault of its line, or its type."""
    row = next(iter(rows), None)
    return str(row.args[0]) if isinstance(row, ValueError) else f"of type {type(row).__name__}"


def _sample(file: SourceFile, options: Mapping[str, Any], most: int | None = None) -> list[Any]:
    rows: list[Any] = []
    reader = JsonReader()
    size = 0
    with open_text(file.path, options) as stream:
        for line in lines_of(stream):
            if _is_row(line):
                rows.append(_parse(line, reader))
                size += len(line) if isinstance(line, bytes) else 0
            if len(rows) == (most or _INFER_ROWS) or size >= INFER_BYTES:
                break
    return rows
