"""Index tables of input files: the published ones, the listed ones, and their differences.

On disk like the other tables, so that an input may have millions of files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from pipeline.commit.index.scratch import Scratch
from pipeline.types import ListedFile


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessedFile:
    """An input file of a watermark (see :mod:`pipeline.commit.lists`).

    Attributes:
        key: path below the input folder.
        digest, stamp: of its content when its rows were generated, as in :class:`~pipeline.types.SourceFile`.
        position: position of the publication that holds its rows.
        unit: number of the unit that it shares with other files of that position; None if its units are its own.
        rows: its rows, if it shares a unit; else 0.
        version: how often its rows were replaced.
        removed: whether it is gone and its rows with it; its version is kept, should it come back.
    """

    key: str
    digest: str
    stamp: str
    position: int
    unit: int | None = None
    rows: int = 0
    version: int = 0
    removed: bool = False


_PROCESSED = tuple(field.name for field in fields(ProcessedFile))
_LISTED = tuple(field.name for field in fields(ListedFile))
_P = ", ".join(f"p.{name}" for name in _PROCESSED)
_L = ", ".join(f"l.{name}" for name in _LISTED)
_NEW = "FROM listed l LEFT JOIN processed p ON p.key = l.key WHERE (p.key IS NULL OR p.removed)"
_TOUCHED = "FROM listed l JOIN processed p ON p.key = l.key WHERE NOT p.removed AND p.stamp <> l.stamp"
_OLD = "(l.modified IS NULL OR l.modified <= ?)"
_READY = f"(l.size > 0 AND {_OLD})"
_KIND = "kind IN (SELECT value FROM json_each(?))"


class Inputs:
    """The tables. A context manager that drops them, as it has a database of its own."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._scratch.run(
            "CREATE TABLE processed (key TEXT PRIMARY KEY, digest TEXT, stamp TEXT, position INTEGER, unit INTEGER, "
            "rows INTEGER, version INTEGER, removed INTEGER, list INTEGER)"
        )
        self._scratch.run("CREATE INDEX processed_by_unit ON processed (position, unit) WHERE unit IS NOT NULL")
        self._scratch.run(
            "CREATE TABLE listed (key TEXT PRIMARY KEY, path TEXT, stamp TEXT, size INTEGER, modified REAL, info TEXT)"
        )
        self._scratch.run("CREATE TABLE differing (key TEXT PRIMARY KEY, position INTEGER, kind TEXT)")
        self._scratch.run("CREATE INDEX differing_by_position ON differing (position)")
        self._scratch.run("CREATE TABLE restamped (key TEXT PRIMARY KEY, stamp TEXT)")
        self._settled = math.inf

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.close()

    def enter(self, files: Iterable[ProcessedFile], *, number: int) -> None:
        """Enter a list of processed files, the ``number``-th of the watermark; of equal keys the last one counts."""
        values = ", ".join("?" * (1 + len(_PROCESSED)))
        names = ", ".join(_PROCESSED)
        rows = ((*astuple(file), number) for file in files)
        self._scratch.write(f"INSERT OR REPLACE INTO processed ({names}, list) VALUES ({values})", rows)

    def join_lists(self, first: int) -> None:
        """Make one list of those from number ``first`` on."""
        self._scratch.run("UPDATE processed SET list = ? WHERE list > ?", (first, first))

    def entries(self, number: int) -> Iterator[ProcessedFile]:
        """The files of a list that no later list replaces, by key."""
        query = f"SELECT {_P} FROM processed p WHERE list = ? AND key > ? ORDER BY key LIMIT ?"
        return map(_processed, self._scratch.stream(query, (number,), first=""))

    def keep_positions(self, positions: Sequence[int]) -> None:
        """Forget files whose rows are at none of these positions: their publication was withdrawn."""
        self._scratch.run(
            "DELETE FROM processed WHERE NOT removed AND position NOT IN (SELECT value FROM json_each(?))",
            (json.dumps(positions),),
        )

    def __len__(self) -> int:
        """Files whose rows are published."""
        row = self._scratch.one("SELECT count(*) FROM processed WHERE NOT removed")
        return 0 if row is None else int(row[0])

    def get(self, key: str) -> ProcessedFile | None:
        """A file by key, a removed one too."""
        row = self._scratch.one(f"SELECT {_P} FROM processed p WHERE key = ?", (key,))
        return None if row is None else _processed(row)

    def at(self, position: int) -> Iterator[ProcessedFile]:
        """The files whose rows are in the publication at this position, by key."""
        query = f"SELECT {_P} FROM processed p WHERE position = ? AND NOT removed AND key > ? ORDER BY key LIMIT ?"
        return map(_processed, self._scratch.stream(query, (position,), first=""))

    def sharing(self, file: ProcessedFile) -> Iterator[ProcessedFile]:
        """The files that share a unit with ``file``, itself included."""
        if file.unit is None:
            yield file
            return
        query = f"SELECT {_P} FROM processed p WHERE position = ? AND unit = ? AND NOT removed ORDER BY key"
        yield from map(_processed, self._scratch.all(query, (file.position, file.unit)))

    def list(self, files: Iterable[ListedFile], *, settled: float = math.inf) -> None:
        """Enter a listing; replaces the one before. ``settled``: files that are younger than this are left alone."""
        for table in ("listed", "differing", "restamped"):
            self._scratch.run(f"DELETE FROM {table}")
        self._settled = settled
        values = ", ".join("?" * len(_LISTED))
        rows = ((f.key, f.path, f.stamp, f.size, f.modified, json.dumps(f.info) if f.info else None) for f in files)
        self._scratch.write(f"INSERT OR REPLACE INTO listed ({', '.join(_LISTED)}) VALUES ({values})", rows)

    def listed(self, key: str) -> ListedFile | None:
        """A file of the listing."""
        row = self._scratch.one(f"SELECT {_L} FROM listed l WHERE key = ?", (key,))
        return None if row is None else _listed(row)

    def has_settled(self, file: ListedFile) -> bool:
        """Whether a file is old enough."""
        return file.modified is None or file.modified <= self._settled

    def ready(self, key: str) -> ListedFile | None:
        """A file of the listing that can be processed: it is old enough, and not empty."""
        file = self.listed(key)
        return file if file is not None and file.size and self.has_settled(file) else None

    def new(self, after: str = "") -> Iterator[tuple[ListedFile, int]]:
        """Files that can be processed and whose rows are not published, each with the version that its rows will be.

        By key; ``after``: only keys greater than this one.
        """
        query = (
            f"SELECT {_L}, coalesce(p.version + 1, 0) {_NEW} AND {_READY} AND l.key > ? ORDER BY l.key LIMIT ?"
        )  # fmt: skip
        pages = self._scratch.stream(query, (self._settled,), first=after)
        return ((_listed(row[:-1]), row[-1]) for row in pages)

    def count_new(self, after: str = "") -> int:
        """The number of :meth:`new`."""
        return self._count(f"SELECT count(*) {_NEW} AND {_READY} AND l.key > ?", (self._settled, after))

    def count_settling(self) -> int:
        """Files of the listing that are too young to be looked at, or new and empty."""
        new = self._count(f"SELECT count(*) {_NEW} AND NOT ({_READY})", (self._settled,))
        return new + self._count(f"SELECT count(*) {_TOUCHED} AND NOT {_OLD}", (self._settled,))

    def touched(self) -> Iterator[tuple[ListedFile, ProcessedFile]]:
        """Files of the listing that are old enough, whose rows are published, and whose stamp is another one since."""
        query = f"SELECT {_L}, {_P} {_TOUCHED} AND {_OLD} AND l.key > ? ORDER BY l.key LIMIT ?"
        size = len(_LISTED)
        pages = self._scratch.stream(query, (self._settled,), first="")
        return ((_listed(row[:size]), _processed(row[size:])) for row in pages)

    def unlisted(self) -> Iterator[ProcessedFile]:
        """Files whose rows are published, and which the listing does not show."""
        query = (
            f"SELECT {_P} FROM processed p LEFT JOIN listed l ON p.key = l.key "
            "WHERE l.key IS NULL AND NOT p.removed AND p.key > ? ORDER BY p.key LIMIT ?"
        )
        return map(_processed, self._scratch.stream(query, first=""))

    def differ(self, files: Iterable[tuple[str, int, str]]) -> None:
        """Note changes of processed files: key, position and kind; the last kind counts."""
        self._scratch.write("INSERT OR REPLACE INTO differing VALUES (?, ?, ?)", files)

    def count_differing(self, kinds: Sequence[str]) -> int:
        """Files that differ in one of these ways."""
        return self._count(f"SELECT count(*) FROM differing WHERE {_KIND}", (json.dumps(kinds),))

    def differing_keys(self, kinds: Sequence[str]) -> Iterator[str]:
        """Their keys, in order."""
        query = f"SELECT key FROM differing WHERE {_KIND} AND key > ? ORDER BY key LIMIT ?"
        return (key for (key,) in self._scratch.stream(query, (json.dumps(kinds),), first=""))

    def differing_positions(self, kinds: Sequence[str]) -> Iterator[int]:
        """The positions of the publications that hold their rows, in order."""
        query = f"SELECT DISTINCT position FROM differing WHERE {_KIND} AND position > ? ORDER BY position LIMIT ?"
        return (position for (position,) in self._scratch.stream(query, (json.dumps(kinds),)))

    def differing_at(self, position: int, kinds: Sequence[str]) -> Iterator[ProcessedFile]:
        """Those of the publication at this position, by key."""
        query = (
            f"SELECT {_P} FROM differing d JOIN processed p ON p.key = d.key "
            f"WHERE {_KIND} AND d.position = ? AND p.key > ? ORDER BY p.key LIMIT ?"
        )
        return map(_processed, self._scratch.stream(query, (json.dumps(kinds), position), first=""))

    def drop_differing(self, position: int, kinds: Sequence[str]) -> None:
        """Forget them."""
        self._scratch.run(f"DELETE FROM differing WHERE {_KIND} AND position = ?", (json.dumps(kinds), position))

    def restamp(self, stamps: Iterable[tuple[str, str]]) -> None:
        """Note the stamps that processed files of the same content have now: key and stamp."""
        self._scratch.write("INSERT OR REPLACE INTO restamped VALUES (?, ?)", stamps)

    def take_restamped(self, most: int) -> tuple[ProcessedFile, ...]:
        """Processed files of the same content with their stamps of now; each is given out once."""
        rows = self._scratch.all(
            f"SELECT s.stamp, {_P} FROM restamped s JOIN processed p ON p.key = s.key ORDER BY s.key LIMIT ?", (most,)
        )
        found = tuple(replace(_processed(row[1:]), stamp=row[0]) for row in rows)
        self._scratch.write("DELETE FROM restamped WHERE key = ?", ((file.key,) for file in found))
        return found

    def _count(self, query: str, values: Sequence[Any]) -> int:
        row = self._scratch.one(query, values)
        return 0 if row is None else int(row[0])


def _processed(row: Sequence[Any]) -> ProcessedFile:
    named = dict(zip(_PROCESSED, row, strict=True))
    return ProcessedFile(**{**named, "removed": bool(named["removed"])})


def _listed(row: Sequence[Any]) -> ListedFile:
    named = dict(zip(_LISTED, row, strict=True))
    return ListedFile(**{**named, "info": json.loads(named["info"]) if named["info"] else {}})
