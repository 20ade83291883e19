"""A private SQLite database on local disk: rows in by batches, out by pages. Its memory is bounded."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["Scratch"]

_CACHE_KIB = 8192
_BATCH = 1024
"""Rows written in one transaction."""
_PAGE = 512
"""Rows read at once."""


class Scratch:
    """The database of one process; its threads may use it together.

    It has no name in the file system (SQLite: an empty file name is a temporary database, removed when it is closed,
    also by a kill) and lies in the folder for temporary files (``SQLITE_TMPDIR``, ``TMPDIR``).
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        # What is in it is made again after a crash: no journal, nothing flushed.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            self.run(f"PRAGMA {pragma}")

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._connection.close()

    def run(self, sql: str, params: Sequence[Any] = ()) -> None:
        """A statement whose result does not matter."""
        with self._lock:
            self._connection.execute(sql, params).close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        with self._lock:
            row: tuple[Any, ...] | None = self._connection.execute(sql, params).fetchone()
            return row

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows: where they are known to be few."""
        with self._lock:
            return self._connection.execute(sql, params).fetchall()

    def write(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """A statement for each of ``rows``, which may come from a query of this database."""
        source = iter(rows)
        while batch := list(itertools.islice(source, _BATCH)):
            with self._lock:
                self._connection.execute("BEGIN")
                self._connection.executemany(sql, batch)
                self._connection.execute("COMMIT")

    def stream(self, sql: str, params: Sequence[Any] = (), first: Any = -1) -> Iterator[tuple[Any, ...]]:
        """All rows, a page in memory at a time; others may read and write between the pages.

        Args:
            sql: a query whose first column is a key that goes up and is no two rows'; its last two parameters are the
                key after which to begin and a number of rows.
            params: the parameters before these.
            first: below every key.
        """
        while rows := self.all(sql, (*params, first, _PAGE)):
            yield from rows
            first = rows[-1][0]
