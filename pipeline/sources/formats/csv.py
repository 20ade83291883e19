"""CSV files: a header, cells in UTF-8, quotes as in RFC 4180. A record that does not fit is a bad row.

A column is of integers or of floats if each of its cells among the first rows is written as Python writes that number,
so that it comes back; or of booleans. Else it is text, such as "007", "1.10" and identifiers beyond 64 bits. A later
cell that would not come back fails its row. An empty cell is null, and in text the empty text.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.csv_records import Record, delimiter_of, records
from pipeline.sources.finding import has_suffix
from pipeline.sources.json_text import Misfit, Row
from pipeline.sources.limits import INFER_BYTES, MAX_ROW_BYTES, check_column_count
from pipeline.sources.source import each_of, read_with_retries
from pipeline.sources.text import LongLine, TextSource, lines_of, open_text, with_compression
from pipeline.sources.types import Wanted, text_field
from pipeline.types import SourceFile

_INFER_ROWS = 20_000
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[-+][0-9]+)?")
_SEPARATOR_LINE = re.compile(rb"sep=([,;\t|])\r?\n?")
"""First line of a file that Excel is to open, in front of the header."""
_HEADER_REMEDY = "The first line names the columns, each once."
_MOST_EXACT = 2**53
"""Floats of 64 bits hold every integer up to it."""
_SPELLINGS = (("false", "true"), ("False", "True"), ("FALSE", "TRUE"))
_BOOLEANS = {word: bool(i) for words in _SPELLINGS for i, word in enumerate(words)}


class CsvSource(TextSource):
    """Rows of comma-separated (``.tsv``: tab-separated) files, plain or compressed, each with a header."""

    label = "CSV"
    suffixes = with_compression(".csv", ".tsv")

    def __init__(
        self, files: Sequence[SourceFile], kinds: Mapping[str, str], options: Mapping[str, Any],
        headers: Sequence[_Header],
    ) -> None:  # fmt: skip
        """``kinds``: of the cells of each column; ``headers``: of each file."""
        super().__init__(files, pa.schema([_field(name, kind) for name, kind in kinds.items()]), options)
        self._kinds = dict(kinds)
        self._headers = tuple(headers)

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> CsvSource:
        """These files; columns are found by name, one that some files lack is null there.

        Raises:
            SourceError: a damaged file, or a header that is missing or names a column twice.
        """
        headers: list[_Header] = []
        kinds: dict[str, str | None] = {}
        for header, found in each_of(files, lambda file: _look(file, options)):
            headers.append(header)
            for name, kind in zip(header.names, found, strict=True):
                kinds[name] = _common(kinds.get(name), kind)
        return cls(files, {name: kind or "text" for name, kind in kinds.items()}, options, headers)

    def want(self, wanted: Wanted) -> None:
        """Read columns of texts for sampling as text: a cell ``5`` is the stop string "5", whatever the others are."""
        super().want(wanted)
        self.wanted = replace(wanted, params=())  # all cells are text, which parameters are read from
        self._read_as_text(wanted.texts.intersection(self.schema.names))

    def fits(self, own: pa.DataType, table: pa.DataType) -> bool:
        """Cells are text and can be read as text; whole numbers as numbers of any kind."""
        return own == table or table == pa.string() or (own == pa.int64() and table == pa.float64())

    def _ends(self, stream: BinaryIO, file: int) -> Iterator[int]:
        header, found = _records_of(stream, self.files[file].path)
        position = header.begin
        for record in itertools.chain([header.record], found):
            position += record.size
            yield position

    def _parse(self, lines: Iterable[bytes | LongLine], file: int) -> list[Any]:
        header = self._headers[file]
        readers = [self._reader(name) for name in header.names]
        return [_row(record, header.names, readers) for record in records(lines, header.delimiter)]

    def _reader(self, name: str) -> Callable[[str], Any]:
        """Reads the cells of a column, which a table that has it already may hold as another type."""
        kind = self.file_schema.field(name).type
        if kind == pa.string():
            return str
        return _number if kind == pa.float64() and self._kinds.get(name) != "float" else _READERS[_NAMES[kind]]


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The header of a file.

    Attributes:
        names: of the columns.
        delimiter: between cells.
        begin: bytes in front of the header.
        record: the header as a record.
    """

    names: tuple[str, ...]
    delimiter: str
    begin: int
    record: Record


def _records_of(stream: BinaryIO, path: str) -> tuple[_Header, Iterator[Record]]:
    """The header of a file, and the records after it.

    Raises:
        SourceError: there is no header, or it does not name each column once.
    """
    begin, line, separator = 0, _header_line(stream, path), None
    if line.startswith(codecs.BOM_UTF8):
        begin, line = len(codecs.BOM_UTF8), line.removeprefix(codecs.BOM_UTF8)
    if given := _SEPARATOR_LINE.fullmatch(line):
        begin, line, separator = begin + len(line), _header_line(stream, path), given[1].decode()
    if separator is None:
        is_tabbed = has_suffix(path, with_compression(".tsv"))
        separator = "\t" if is_tabbed else delimiter_of(line.decode("latin-1"))
    found = records(itertools.chain([line] if line else [], lines_of(stream)), separator)
    record = next(found, None)
    if record is None or record.cells is None:
        reason = "" if record is None else f" ({record.fault})"
        raise SourceError(f"{path}: no header{reason}. {_HEADER_REMEDY}")
    return _Header(names=_names(path, record.cells), delimiter=separator, begin=begin, record=record), found


def _header_line(stream: BinaryIO, path: str) -> bytes:
    line = stream.readline(MAX_ROW_BYTES + 1)
    if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
        raise SourceError(f"{path}: its header has more than {MAX_ROW_BYTES} bytes. {_HEADER_REMEDY}")
    return line


def _row(record: Record, header: tuple[str, ...], readers: Sequence[Callable[[str], Any]]) -> Any:
    """A mapping, or a ``ValueError(reason, text)`` in its place."""
    if record.cells is None:
        return _bad(record, record.fault)
    if len(record.cells) != len(header):
        return _bad(record, f"{len(record.cells)} cells in a table of {len(header)} columns")
    row: dict[str, Any] = {}
    for name, cell, read in zip(header, record.cells, readers, strict=True):
        try:
            row[name] = read(_text(cell))
        except UnicodeDecodeError as error:
            row[name] = Misfit(f"not UTF-8: {error}", cell)
        except ValueError as error:
            row[name] = Misfit(str(error), cell)
    return Row(row, _raw(record)) if any(isinstance(cell, Misfit) for cell in row.values()) else row


def _bad(record: Record, reason: str) -> ValueError:
    return ValueError(reason, _raw(record))


def _raw(record: Record) -> str:
    return record.raw.strip(b"\r\n").decode("utf-8", "backslashreplace")


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
    if not _is_float(text):
        raise ValueError(f"{text[:80]!r} is not how a number with a fraction is written")
    return float(text)


def _is_float(text: str) -> bool:
    """Whether text is how Python writes a finite float, so that no digit of it is lost."""
    return _FLOAT.fullmatch(text) is not None and repr(float(text)) == text


def _number(text: str) -> float | None:
    return _integer(text) if _is_integer(text) else _float(text)


def _boolean(text: str) -> bool | None:
    if not text:
        return None
    if text not in _BOOLEANS:
        raise ValueError(f"{text[:80]!r} is neither true nor false")
    return _BOOLEANS[text]


_TYPES: Mapping[str, pa.DataType] = {
    "number": pa.float64(), "long": pa.int64(), "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_(),
    "text": pa.string(),
}  # fmt: skip
"""Kinds of cells. A long is an integer that no float holds; a number is an integer of one file, a float of another."""
_NAMES = {kind: name for name, kind in _TYPES.items()}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integer, "float": _float, "boolean": _boolean, "text": str
}  # fmt: skip


def _kind(cells: Sequence[str]) -> str | None:
    """The type of a column's cells; None where all are empty."""
    written = [cell for cell in cells if cell]
    if not written:
        return None
    if all(map(_is_integer, written)):
        return "integer" if all(abs(int(cell)) <= _MOST_EXACT for cell in written) else "long"
    if all(map(_is_float, written)):
        return "float"
    return "boolean" if any(set(written) <= {*words} for words in _SPELLINGS) else "text"


def _common(one: str | None, other: str | None) -> str | None:
    """A kind as which the cells of both come back."""
    both = {one, other} - {None}
    if len(both) < 2:
        return one or other
    if both <= {"integer", "long"}:
        return "long"
    return "number" if both <= {"integer", "float", "number"} else "text"


def _field(name: str, kind: str) -> pa.Field:
    return text_field(name) if kind == "text" else pa.field(name, _TYPES[kind])


def _look(file: SourceFile, options: Mapping[str, Any]) -> tuple[_Header, list[str | None]]:
    """The header, and the kind of each column."""
    header, rows = read_with_retries(lambda: _sample(file, options), file.path)
    return header, [_kind([row[i] for row in rows]) for i in range(len(header.names))]


def _sample(file: SourceFile, options: Mapping[str, Any]) -> tuple[_Header, list[tuple[str, ...]]]:
    """The header, and the first records that fit it."""
    with open_text(file.path, options) as stream:
        header, found = _records_of(stream, file.path)
        rows: list[tuple[str, ...]] = []
        size = 0
        for record in itertools.islice(found, _INFER_ROWS):
            if record.cells is not None and len(record.cells) == len(header.names):
                rows.append(record.cells)
                size += record.size
            if size >= INFER_BYTES:
                break
        return header, rows


def _names(path: str, cells: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns; the first may have none, as pandas writes an index: it has the name that pandas reads.

    Raises:
        SourceError: they are too many, not UTF-8, missing or not unique.
    """
    check_column_count(cells, path)
    try:
        names = (_text(cells[0]) or "Unnamed: 0", *map(_text, cells[1:]))
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: its header is not UTF-8 ({error}). Re-encode it.") from error
    if "" in names or len(set(names)) < len(names):
        shown = str(list(names))
        shown = shown if len(shown) < 1000 else f"{shown[:1000]}..."
        raise SourceError(f"{path}: its header is {shown}. {_HEADER_REMEDY}")
    return names
