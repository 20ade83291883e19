"""A temporary SQLite database on local disk, written in batches and read in pages, so that memory is bounded."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
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
        self._set_up()

    def _set_up(self) -> None:
        # After a crash its content is built again, so it needs no journal and no flushes.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            self.run(f"PRAGMA {pragma}")

    def save(self, path: str, statements: Sequence[str], first: Sequence[Any]) -> None:
        """Run statements while a new database file is attached as ``saved``; ``first``: parameters of the first one."""
        with self._lock:
            self._connection.execute("ATTACH ? AS saved", (path,))
            try:
                for pragma in ("journal_mode=OFF", "synchronous=OFF"):
                    self._connection.execute(f"PRAGMA saved.{pragma}")
                self._connection.execute("BEGIN")
                for number, statement in enumerate(statements):
                    self._connection.execute(statement, () if number else first)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._connection.execute("DETACH saved")

    def adopt(self, path: str) -> None:
        """Go on with the database of a file, in place of this one; the file's name is removed at once."""
        with self._lock:
            adopted = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            adopted.execute("SELECT count(*) FROM sqlite_master").fetchone()  # now the file is open
            os.unlink(path)
            self._connection.close()
            self._connection = adopted
        self._set_up()

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


_TABLES, _INDEX = ("records", "revoked"), "records_by_id"
_MASTER = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"


def save_snapshot(scratch: Scratch, path: str, facts: Mapping[str, object]) -> None:
    """Write the index's records, revocations and plan to a new file.

    Args:
        scratch: the index.
        path: of the file.
        facts: plain values, given back by :func:`load_snapshot`.

    Raises:
        OSError: the file cannot be written.
    """
    made = dict(scratch.all(_MASTER))
    statements = ["CREATE TABLE saved.facts AS SELECT ? AS text"]
    for name in _TABLES:
        statements += [_in_saved(made[name]), f"INSERT INTO saved.{name} SELECT * FROM main.{name} ORDER BY rowid"]
    statements.append(_in_saved(made[_INDEX]))  # after the rows: sorting them takes less than inserting in any order
    if "plan" in made and "kept_units" not in made:
        statements += [
            "CREATE TABLE saved.plan AS SELECT * FROM main.plan",
            _in_saved(made["units"], "kept_units"),
            "INSERT INTO saved.kept_units SELECT * FROM main.units ORDER BY idx",
            "UPDATE saved.kept_units SET todo = 0 WHERE todo > 0",
            "CREATE UNIQUE INDEX saved.kept_by_id ON kept_units (unit_id)",
        ]
    try:
        scratch.save(path, statements, (json.dumps(facts),))
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def load_snapshot(scratch: Scratch, path: str) -> dict[str, Any] | None:
    """Make a file that :func:`save_snapshot` wrote the index's database; the file is removed.

    Args:
        scratch: the index; it has to be empty.
        path: of the file.

    Returns:
        The facts; None, and nothing is loaded, if a version with other tables wrote the file.

    Raises:
        OSError: the file cannot be read.
    """
    wanted = dict(scratch.all(_MASTER))
    try:
        with closing(sqlite3.connect(path)) as file:
            found = dict(file.execute(_MASTER).fetchall())
            if any(found.get(name) != _in_saved(wanted[name]).replace("saved.", "") for name in (*_TABLES, _INDEX)):
                return None
            ((text,),) = file.execute("SELECT text FROM facts").fetchall()
        scratch.adopt(path)
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error
    for name, sql in wanted.items():
        if name not in found:
            scratch.run(sql)
    facts: dict[str, Any] = json.loads(text)
    return facts


def _in_saved(sql: str, name: str | None = None) -> str:
    """The statement that makes a table or an index, for the file."""
    before, kind, rest = next(sql.partition(word) for word in ("TABLE ", "INDEX ") if word in sql)
    old, _, more = rest.partition(" ")
    return f"{before}{kind}saved.{name or old} {more}"
