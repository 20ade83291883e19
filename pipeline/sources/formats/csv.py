"""CSV files: a header, cells in UTF-8, quotes as in RFC 4180. A record that does not fit is a bad row.

A column is of integers, of floats or of booleans if all of its cells among the first rows are written as
such (so "007" is text, and stays as it is); else of text. An empty cell is null, and in text the empty text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.base import each_of, read_with_retries
from pipeline.sources.csv_records import Record, records
from pipeline.sources.limits import INFER_BYTES, MAX_ROW_BYTES
from pipeline.sources.lines import LongLine, lines_of
from pipeline.sources.suffixes import has_suffix
from pipeline.sources.text import TextSource, open_text, with_compression
from pipeline.types import SourceFile

__all__ = ["CsvSource"]

_INFER_ROWS = 20_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_HEADER_REMEDY = "The first line names the columns, each once."
_MOST_COLUMNS = 10_000
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class CsvSource(TextSource):
    """Rows of comma-separated (``.tsv``: tab-separated) files, plain or compressed, each with a header."""

    label = "CSV"
    suffixes = with_compression(".csv", ".tsv")

    def __init__(
        self,
        files: Sequence[SourceFile],
        schema: pa.Schema,
        options: Mapping[str, Any],
        headers: Sequence[tuple[str, ...]],
    ) -> None:
        """``headers``: column names of each file."""
        super().__init__(files, schema, options)
        self._headers = tuple(headers)

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> CsvSource:
        """These files; columns are found by name, one that some files lack is null there.

        Raises:
            SourceError: a damaged file, or a header that is missing or names a column twice.
        """
        headers: list[tuple[str, ...]] = []
        kinds: dict[str, str | None] = {}
        for header, found in each_of(files, lambda file: _look(file, options)):
            headers.append(header)
            for name, kind in zip(header, found, strict=True):
                kinds[name] = _common(kinds.get(name), kind)
        schema = pa.schema([(name, _TYPES[kind or "text"]) for name, kind in kinds.items()])
        return cls(files, schema, options, headers)

    def fits(self, own: pa.DataType, table: pa.DataType) -> bool:
        """Cells are text and can be read as text; whole numbers as numbers of any kind."""
        return own == table or table == pa.string() or (own == pa.int64() and table == pa.float64())

    def _ends(self, stream: BinaryIO, file: int) -> Iterator[int]:
        position, found = _records_of(stream, self.files[file].path)
        for record in found:
            position += record.size
            yield position

    def _parse(self, lines: Iterable[bytes | LongLine], file: int) -> list[Any]:
        header = self._headers[file]
        readers = [_READERS[_NAMES[self.file_schema.field(name).type]] for name in header]
        found = records(lines, _delimiter(self.files[file].path))
        return [_row(record, header, readers) for record in found]


def _records_of(stream: BinaryIO, path: str) -> tuple[int, Iterator[Record]]:
    """The bytes in front of the header, and the records of a file from its header on."""
    first = stream.readline(MAX_ROW_BYTES + 1)
    if len(first) > MAX_ROW_BYTES and not first.endswith(b"\n"):
        raise SourceError(f"{path}: its header has more than {MAX_ROW_BYTES} bytes. {_HEADER_REMEDY}")
    begin = len(_BYTE_ORDER_MARK) if first.startswith(_BYTE_ORDER_MARK) else 0
    return begin, records(itertools.chain([first[begin:]], lines_of(stream)), _delimiter(path))


def _delimiter(path: str) -> str:
    return "\t" if has_suffix(path, with_compression(".tsv")) else ","


def _row(record: Record, header: tuple[str, ...], readers: Sequence[Callable[[str], Any]]) -> Any:
    """A mapping, or a ``ValueError(reason, text)`` in its place."""
    if record.cells is None:
        return _bad(record, record.fault)
    if len(record.cells) != len(header):
        return _bad(record, f"{len(record.cells)} cells in a table of {len(header)} columns")
    row = {}
    for name, cell, read in zip(header, record.cells, readers, strict=True):
        try:
            row[name] = read(_text(cell))
        except UnicodeDecodeError as error:
            return _bad(record, f"column {name!r} is not UTF-8: {error}")
        except ValueError as error:
            return _bad(record, f"column {name!r}: {error}")
    return row


def _bad(record: Record, reason: str) -> ValueError:
    return ValueError(reason, record.raw.strip(b"\r\n").decode("utf-8", "backslashreplace"))


def _text(cell: str) -> str:
    return cell if cell.isascii() else cell.encode("latin-1").decode("utf-8")


def _integer(text: str) -> int | None:
    if not text:
        return None
    if not _is_integer(text):
        raise ValueError(f"{text[:80]!r} is not an integer of 64 bits")
    return int(text)


def _is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def _float(text: str) -> float | None:
    if not text:
        return None
    if _FLOAT.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is not a number")
    return float(text)


def _boolean(text: str) -> bool | None:
    if not text:
        return None
    if text not in _BOOLEANS:
        raise ValueError(f"{text[:80]!r} is neither true nor false")
    return _BOOLEANS[text]


_TYPES: Mapping[str, pa.DataType] = {
    "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_(), "text": pa.string()
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integer, "float": _float, "boolean": _boolean, "text": str
}  # fmt: skip


def _kind(cells: Sequence[str]) -> str | None:
    """What a column's cells are; None where all are empty."""
    written = [cell for cell in cells if cell]
    if not written:
        return None
    if all(map(_is_integer, written)):
        return "integer"
    if all(_FLOAT.fullmatch(cell) and not _LEADING_ZERO.match(cell) for cell in written):
        return "float"
    return "boolean" if all(cell in _BOOLEANS for cell in written) else "text"


def _common(one: str | None, other: str | None) -> str | None:
    """A kind that holds the cells of both."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    return "float" if {one, other} == {"integer", "float"} else "text"


def _look(file: SourceFile, options: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str | None]]:
    """The header, and the kind of each column."""
    header, rows = read_with_retries(lambda: _sample(file, options), file.path)
    return header, [_kind([row[i] for row in rows]) for i in range(len(header))]


def _sample(file: SourceFile, options: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header, and the first records that fit it."""
    with open_text(file.path, options) as stream:
        _, found = _records_of(stream, file.path)
        header = _header(file, next(found, None))
        rows: list[tuple[str, ...]] = []
        size = 0
        for record in itertools.islice(found, _INFER_ROWS):
            if record.cells is not None and len(record.cells) == len(header):
                rows.append(record.cells)
                size += record.size
            if size >= INFER_BYTES:
                break
        return header, rows


def _header(file: SourceFile, record: Record | None) -> tuple[str, ...]:
    if record is None or record.cells is None:
        raise SourceError(f"{file.path}: no header. {_HEADER_REMEDY}")
    if len(record.cells) > _MOST_COLUMNS:
        count = f"{len(record.cells)} columns, and {_MOST_COLUMNS} is the most"
        raise SourceError(f"{file.path}: its header names {count}. {_HEADER_REMEDY}")
    try:
        names = tuple(_text(cell) for cell in record.cells)
    except UnicodeDecodeError as error:
        raise SourceError(f"{file.path}: its header is not UTF-8 ({error}). Re-encode it.") from error
    if "" in names or len(set(names)) < len(names):
        raise SourceError(_misnamed(file.path, names))
    return names


def _misnamed(path: str, names: Sequence[str]) -> str:
    """What to say of a header that does not name each column once; of a long one, its begin."""
    shown = str(list(names))
    return f"{path}: its header is {shown if len(shown) < 1000 else shown[:1000] + '...'}. {_HEADER_REMEDY}"
