"""A temporary SQLite database on local disk, written in batches and read in pages, so that memory is bounded."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_CACHE_KIB = 8192
_BATCH = 1024
"""Tuples written in one transaction."""
_PAGE = 512
"""Tuples read at once."""


class Scratch:
    """The database of one process. Thread-safe.

    It is an SQLite temporary database (one with an empty file name): it is in the folder for temporary files
    (``SQLITE_TMPDIR``, ``TMPDIR``) and is removed when it is closed, even by a kill.
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        # After a crash its content is built again, so it needs no journal and no flushes.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            self.run(f"PRAGMA {pragma}")

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._connection.close()

    def run(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a statement and ignore its result."""
        with self._lock:
            self._connection.execute(sql, params).close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first tuple of a query, or None."""
        with self._lock:
            found: tuple[Any, ...] | None = self._connection.execute(sql, params).fetchone()
            return found

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All tuples of a query; for queries with few."""
        with self._lock:
            return self._connection.execute(sql, params).fetchall()

    def write(self, sql: str, tuples: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of ``tuples``, which may come from a query of this database."""
        source = iter(tuples)
        while batch := list(itertools.islice(source, _BATCH)):
            with self._lock:
                self._connection.execute("BEGIN")
                self._connection.executemany(sql, batch)
                self._connection.execute("COMMIT")

    def stream(self, sql: str, params: Sequence[Any] = (), first: Any = -1) -> Iterator[tuple[Any, ...]]:
        """All tuples of a query, one page in memory at a time; other calls may read and write between the pages.

        Args:
            sql: a query whose first column is an ascending unique key, and whose last two parameters are the key before
                the first tuple and the number of tuples.
            params: the parameters before these two.
            first: a value below every key.
        """
        while page := self.all(sql, (*params, first, _PAGE)):
            yield from page
            first = page[-1][0]
