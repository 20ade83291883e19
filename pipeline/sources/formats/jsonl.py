"""JSON Lines files. Column types come from the first rows; a line that does not fit them is a bad row."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.base import each_of, read_with_retries
from pipeline.sources.limits import DEPTH_RULE, INFER_BYTES, MAX_DEPTH, is_too_deep, long_row_rule
from pipeline.sources.lines import LongLine, lines_of
from pipeline.sources.tabulate import Columns, infer_columns
from pipeline.sources.text import TextSource, open_text, with_compression
from pipeline.types import SourceFile

__all__ = ["JsonlSource", "parsed_rows"]

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
        columns = _merged(each_of(files, lambda file: read_with_retries(lambda: _infer(file, options), file.path)))
        source = cls(files, columns.schema, options)
        source.as_json = columns.as_json
        if not columns.schema.names and next(source.slices(1), None) is not None:  # of no rows, whoever needs some
            raise SourceError(f"{files[0].path}: no row is a JSON object. Write one object per line.")
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
    return (_parse(line) for line in lines if _is_row(line))


def _merged(found: Sequence[Columns]) -> Columns:
    """The columns of all files; lists and mappings of which the files have no common type become JSON text.

    Raises:
        SourceError: the files contradict each other.
    """
    names = dict.fromkeys(name for columns in found for name in columns.schema.names)
    types = {name: {own.schema.field(name).type for own in found if name in own.schema.names} for name in names}
    as_json = {name for columns in found for name in columns.as_json}
    as_json |= {name for name, own in types.items() if all(map(pa.types.is_nested, own)) and not _unified(name, own)}
    schemas = [pa.schema([_text_if(field, field.name in as_json) for field in columns.schema]) for columns in found]
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(f"the input's files disagree on column types ({error}). Correct or split them.") from error
    return Columns(schema=schema, as_json=frozenset(as_json))


def _unified(name: str, types: Iterable[pa.DataType]) -> bool:
    try:
        pa.unify_schemas([pa.schema([(name, kind)]) for kind in types], promote_options="permissive")
    except pa.ArrowException:
        return False
    return True


def _text_if(field: pa.Field, is_json: bool) -> pa.Field:
    return field.with_type(pa.string()) if is_json and pa.types.is_nested(field.type) else field


def _is_row(line: bytes | LongLine) -> bool:
    return isinstance(line, LongLine) or bool(line.strip())


def _parse(line: bytes | LongLine) -> Any:
    """The value on a line, or a ``ValueError(reason, line)`` in its place."""
    if isinstance(line, LongLine):
        return ValueError(long_row_rule(line.size), line.head.decode("utf-8", "backslashreplace"))
    try:
        value = json.loads(line.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
        # What has fewer brackets cannot be deep, and need not be walked through.
        deep = line.count(b"[") + line.count(b"{") > MAX_DEPTH and any(map(is_too_deep, _cells(value)))
    except ValueError as error:
        return ValueError(f"not a line of JSON in UTF-8: {error}", _shown(line))
    except RecursionError:
        deep = True
    return ValueError(DEPTH_RULE, _shown(line)) if deep else value


def _cells(row: Any) -> Iterable[Any]:
    return row.values() if isinstance(row, Mapping) else (row,)


def _shown(line: bytes) -> str:
    return line.strip(b"\r\n").decode("utf-8", "backslashreplace")


def _infer(file: SourceFile, options: Mapping[str, Any]) -> Columns:
    rows: list[Any] = []
    size = 0
    with open_text(file.path, options) as stream:
        for line in lines_of(stream):
            if _is_row(line):
                rows.append(_parse(line))
                size += len(line) if isinstance(line, bytes) else 0
            if len(rows) == _INFER_ROWS or size >= INFER_BYTES:
                break
    return infer_columns(rows)
