"""CSV records and the bytes they are: cells may hold line ends, and a record that is none costs one line only."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Record", "records"]

_MOST_BYTES = 16 * 2**20
"""A quoted cell that is longer is taken for one that is never closed."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record: its bytes, and its cells (as latin-1 text of their bytes) or why it has none."""

    raw: bytes
    cells: tuple[str, ...] | None


def records(lines: Iterable[bytes], delimiter: str) -> Iterator[Record]:
    """Parse lines; blank ones are passed over, their bytes count to the record behind them.

    Where a quoted cell is never closed, the line it begins on is a record without cells, and parsing goes on
    with the next line.
    """
    feed = _Feed(iter(lines))
    # The limit is one of the whole process; no one is served by a smaller one.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * _MOST_BYTES))
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
            yield Record(raw=blank + first, cells=None)
            blank = b""
            continue
        raw = b"".join(feed.taken)
        if cells:
            yield Record(raw=blank + raw, cells=tuple(cells))
            blank = b""
        else:
            blank += raw


class _Feed:
    """Lines for the csv reader, which takes as many as a record needs; they can be given back."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._size = 0
        self.taken: list[bytes] = []
        self.again: deque[bytes] = deque()

    def begin(self) -> None:
        """A record begins."""
        self.taken, self._size = [], 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else next(self._lines)
        self.taken.append(line)
        self._size += len(line)
        if len(self.taken) > 1 and self._size > _MOST_BYTES:
            raise csv.Error("a cell that is never closed")
        return line.decode("latin-1")
