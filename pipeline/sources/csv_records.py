"""Parses CSV records with their byte sizes. Cells may contain line ends; a malformed record spoils one line only."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.sources.limits import MAX_ROW_BYTES, long_row_rule
from pipeline.sources.lines import LongLine

__all__ = ["Record", "records"]

_MOST_BYTES = 16 * 2**20
"""A longer quoted cell counts as never closed."""


_UNCLOSED = "not a CSV record: a quoted cell is never closed, or text follows its closing quote"


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


def records(lines: Iterable[bytes | LongLine], delimiter: str) -> Iterator[Record]:
    """Parse lines. Blank lines are skipped; their bytes count towards the next record.

    If a quoted cell is never closed, the line on which it begins becomes a record without cells, and parsing goes on
    with the next line.
    """
    feed = _Feed(iter(lines))
    # The limit is one of the whole process; no one is served by a smaller one.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_ROW_BYTES))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    blank = b""
    while True:
        feed.begin()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            first, *rest = feed.taken
            feed.again.extendleft(reversed(rest))
            if isinstance(first, LongLine):
                size = len(blank) + first.size
                yield Record(raw=blank + first.head, cells=None, size=size, fault=long_row_rule(first.size))
            else:
                yield Record(raw=blank + first, cells=None, size=len(blank) + len(first), fault=_UNCLOSED)
            blank = b""
            continue
        raw = b"".join(line for line in feed.taken if isinstance(line, bytes))  # a record has no others
        if cells:
            yield Record(raw=blank + raw, cells=tuple(cells), size=len(blank) + len(raw))
            blank = b""
        else:
            blank += raw


class _Feed:
    """Lines for the csv reader, which takes as many as a record needs; they can be given back."""

    def __init__(self, lines: Iterator[bytes | LongLine]) -> None:
        self._lines = lines
        self._size = 0
        self.taken: list[bytes | LongLine] = []
        self.again: deque[bytes | LongLine] = deque()

    def begin(self) -> None:
        """A record begins."""
        self.taken, self._size = [], 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else next(self._lines)
        self.taken.append(line)
        self._size += len(line)
        if isinstance(line, LongLine):
            raise csv.Error("a line that is too long")
        if len(self.taken) > 1 and self._size > _MOST_BYTES:
            raise csv.Error("a cell that is never closed")
        return line.decode("latin-1")
