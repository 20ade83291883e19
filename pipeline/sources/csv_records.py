"""Parses CSV records (RFC 4180) with their byte sizes. A cell in quotes may hold line ends; others hold no quote.

A malformed record spoils one line only: reading goes on with the next line. Each line is searched for quotes twice at
most, however many cells are never closed: whether a cell that is open at the begin of a line closes, and where, depends
on the lines from there on only, so all records that are open at a line share one search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.sources.limits import long_row_rule
from pipeline.sources.text import LongLine

_MOST_BYTES = 16 * 2**20
"""A longer quoted cell counts as never closed."""
_DELIMITERS = (",", ";", "\t")
_MALFORMED = (
    "not a CSV record: a quoted cell is never closed, text follows its closing quote, or a quote or carriage return "
    "stands in a cell without quotes"
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record.

    Attributes:
        raw: its bytes; of a record that is too long, the first ones.
        cells: its cells, each the latin-1 text of its bytes; None if the record is malformed.
        size: its size in the file, in bytes.
        fault: why it has no cells.
    """

    raw: bytes
    cells: tuple[str, ...] | None
    size: int
    fault: str = ""


def delimiter_of(header: str) -> str:
    """The delimiter of a header: the first of comma, semicolon and tab that stands in it outside of quotes."""
    outside = "".join(header.split('"')[::2])
    return next((delimiter for delimiter in _DELIMITERS if delimiter in outside), _DELIMITERS[0])


def records(lines: Iterable[bytes | LongLine], delimiter: str) -> Iterator[Record]:
    """Parse lines. Blank lines are skipped; their bytes count towards the next record."""
    feed = _Feed(iter(lines), delimiter)
    blank = b""
    while (line := feed.take()) is not None:
        if isinstance(line, LongLine):
            size = len(blank) + line.size
            yield Record(raw=blank + line.head, cells=None, size=size, fault=long_row_rule(line.size))
        elif not line.strip(b"\r\n"):
            blank += line
            continue
        else:
            raw = feed.record(line)
            cells = None if raw is None else _cells(raw, delimiter)
            raw = blank + (line if raw is None else raw)
            yield Record(raw=raw, cells=cells, size=len(raw), fault="" if cells is not None else _MALFORMED)
        blank = b""


def _content(line: bytes) -> str:
    """The text of a line without its end."""
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")


def _ends_open(text: str, delimiter: str, is_open: bool) -> bool | None:
    """Whether a quoted cell is open at the end of a line; None if a quote stands where none may.

    ``text``: without its end; ``is_open``: at its begin.
    """
    parts = text.split('"')
    last = len(parts) - 1
    for i in range(is_open, len(parts), 2):  # the parts outside of quotes
        part = parts[i]
        if not part and 0 < i < last:
            continue  # a doubled quote
        begins = i == 0 or not part or part[0] == delimiter
        ends = i == last or not part or part[-1] == delimiter
        if not (begins and ends) or "\r" in part:
            return None
    return (last % 2 == 1) != is_open


def _cells(raw: bytes, delimiter: str) -> tuple[str, ...]:
    """The cells of a well-formed record."""
    text = _content(raw)
    if '"' not in text:
        return tuple(text.split(delimiter))
    cells: list[str] = []
    open_: list[str] = []  # pieces of the last cell: to add each to a text would copy all before it
    parts = text.split('"')
    for i, part in enumerate(parts):
        if i % 2:
            open_.append(part)
        elif not part and 0 < i < len(parts) - 1:
            open_.append('"')
        else:
            first, *rest = part.split(delimiter)
            open_.append(first)
            if rest:
                cells += ["".join(open_), *rest[:-1]]
                open_ = rest[-1:]
    return (*cells, "".join(open_))


class _Feed:
    """Lines that can be looked at before they are taken, and the search for the end of a cell that is open in them."""

    def __init__(self, lines: Iterator[bytes | LongLine], delimiter: str) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._held: deque[bytes | LongLine] = deque()
        self._searched = 0
        """Lines held while a cell that was open at the begin of the first one stays open."""
        self._size = 0
        """Bytes of these."""
        self._closes: bool | None = None
        """Whether the line after these closes the cell; None if that is not known yet."""

    def take(self) -> bytes | LongLine | None:
        """The next line; None at the end."""
        if not self._held:
            self._searched, self._size, self._closes = 0, 0, None
            return next(self._lines, None)
        line = self._held.popleft()
        if self._searched:
            self._searched -= 1
            self._size -= len(line)
        else:
            self._closes = None
        return line

    def record(self, first: bytes) -> bytes | None:
        """The record that begins with a line that was taken; None if it is malformed, and no other line is taken."""
        is_open = _ends_open(_content(first), self._delimiter, False)
        if is_open is None:
            return None
        if not is_open:
            return first
        if not self._search(_MOST_BYTES - len(first)):
            return None
        count = self._searched + 1
        rest = [self._held.popleft() for _ in range(count)]
        self._searched, self._size, self._closes = 0, 0, None
        return first + b"".join(line for line in rest if isinstance(line, bytes))

    def _search(self, most: int) -> bool:
        """Whether a cell that is open at the next line is closed within so many bytes."""
        while self._closes is None and self._size <= most:
            if self._searched == len(self._held):
                line = next(self._lines, None)
                if line is None:
                    self._closes = False
                    break
                self._held.append(line)
            line = self._held[self._searched]
            is_open = None if isinstance(line, LongLine) else _ends_open(_content(line), self._delimiter, True)
            if is_open:
                self._searched += 1
                self._size += len(line)
            else:
                self._closes = is_open is not None
        return bool(self._closes) and self._size <= most
