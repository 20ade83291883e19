"""Index table of planned units: the input's units in order, and which of them this run has to generate."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pipeline.commit.index.scratch import Scratch
from pipeline.types import Slice, Unit

COLUMNS = ("idx", "unit_id", "file", "first_row", "num_rows", "grp", "start", "stop", "more")
"""``num_rows`` is of the whole unit; ``more`` is JSON text of the slices after the first, or null if there are none."""


def unit_of(row: Sequence[Any], attempt: int = 1) -> Unit:
    """The unit from a tuple of :data:`COLUMNS`."""
    index, unit_id, file, first_row, num_rows, group, start, stop, text = row
    more = tuple(_slice(*piece) for piece in json.loads(text)) if text else ()
    own = num_rows - sum(piece.num_rows for piece in more)
    rows = _slice(file, first_row, own, group, start, stop)
    return Unit(unit_id=unit_id, index=index, rows=rows, more=more, attempt=attempt)


def _slice(file: int, first_row: int, num_rows: int, group: int, start: int, stop: int) -> Slice:
    return Slice(file=file, first_row=first_row, num_rows=num_rows, group=group, start=start, stop=stop)


class PlannedUnits:
    """The table: units by index. The column ``todo`` holds the attempt to make at a unit, or 0 if none is needed.

    Attributes:
        loose: units of a plan that the next snapshot will hold, and the last one does not.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self.loose = 0
        scratch.run(
            "CREATE TABLE units (idx INTEGER PRIMARY KEY, unit_id TEXT NOT NULL, file INTEGER, first_row INTEGER, "
            "num_rows INTEGER, grp INTEGER, start INTEGER, stop INTEGER, more TEXT, todo INTEGER NOT NULL DEFAULT 0)"
        )

    def restore(self, key: str) -> bool:
        """Take the plan from the snapshot that was loaded, if that holds the plan of this key."""
        kept = self._scratch.one("SELECT 1 FROM sqlite_master WHERE name = 'kept_units'")
        if kept is None or self._scratch.one("SELECT 1 FROM plan WHERE key = ?", (key,)) is None:
            return False
        self._scratch.run("DROP TABLE units")
        self._scratch.run("ALTER TABLE kept_units RENAME TO units")
        return True

    def keep(self, key: str) -> None:
        """Let snapshots hold the plan. ``key``: a hash of everything that the plan follows from."""
        self._scratch.run("DROP TABLE IF EXISTS plan")
        self._scratch.run("CREATE TABLE plan (key TEXT)")
        self._scratch.run("INSERT INTO plan VALUES (?)", (key,))
        self.loose = len(self)

    def fill(self, units: Iterable[Unit]) -> None:
        """Enter all units of a plan; to be called once."""
        names = ", ".join(COLUMNS)
        self._scratch.write(f"INSERT INTO units ({names}) VALUES ({', '.join('?' * len(COLUMNS))})", map(_row, units))
        self._scratch.run("CREATE UNIQUE INDEX units_by_id ON units (unit_id)")

    def __len__(self) -> int:
        return self._sum("count(*)")

    @property
    def rows(self) -> int:
        """Input rows of all units."""
        return self._sum("sum(num_rows)")

    def __getitem__(self, index: int) -> Unit:
        row = self._scratch.one(f"SELECT {', '.join(COLUMNS)} FROM units WHERE idx = ?", (index,))
        if row is None:
            raise IndexError(index)
        return unit_of(row)

    def __iter__(self) -> Iterator[Unit]:
        """All units, in input order."""
        return self._stream("idx > ?")

    def has(self, unit_id: str) -> bool:
        """Whether a unit is in the plan."""
        return self._scratch.one("SELECT 1 FROM units WHERE unit_id = ?", (unit_id,)) is not None

    def unpublished(self) -> Iterator[Unit]:
        """Units that no publication holds."""
        return self._stream("idx > ? AND NOT EXISTS (SELECT 1 FROM published p WHERE p.unit_id = units.unit_id)")

    def _stream(self, where: str) -> Iterator[Unit]:
        query = f"SELECT {', '.join(COLUMNS)} FROM units WHERE {where} ORDER BY idx LIMIT ?"
        return (unit_of(row) for row in self._scratch.stream(query))

    def mark_work(self, *, retry_failed: bool, only: Collection[str] | None = None) -> None:
        """Mark the units to generate: those without a record, and with ``retry_failed`` those with failed rows.

        With ``only``, no others than these are marked.

        If a unit's record was revoked, or was lost after its rows were published, the attempt to make is a later one.
        """
        self._scratch.run(
            "UPDATE units SET todo = coalesce("
            "(SELECT CASE WHEN ? AND failed_rows > 0 THEN attempt + 1 ELSE 0 END FROM records r "
            "WHERE r.unit_id = units.unit_id), "
            "1 + max(coalesce((SELECT attempt FROM revoked v WHERE v.unit_id = units.unit_id), 0), "
            "coalesce((SELECT max(attempt) FROM published p WHERE p.unit_id = units.unit_id), 0)))",
            (retry_failed,),
        )
        if only is not None:
            query = "UPDATE units SET todo = 0 WHERE unit_id NOT IN (SELECT value FROM json_each(?))"
            self._scratch.run(query, (json.dumps(list(only)),))

    def mark_again(self, unit_id: str) -> None:
        """Mark one unit, which was revoked since :meth:`mark_work`."""
        self._scratch.run(
            "UPDATE units SET todo = 1 + max("
            "coalesce((SELECT attempt FROM revoked v WHERE v.unit_id = units.unit_id), 0), "
            "coalesce((SELECT max(attempt) FROM published p WHERE p.unit_id = units.unit_id), 0)) WHERE unit_id = ?",
            (unit_id,),
        )

    def attempt(self, index: int) -> int:
        """The attempt to make at a unit; 0 if it is not marked."""
        row = self._scratch.one("SELECT todo FROM units WHERE idx = ?", (index,))
        return 0 if row is None else int(row[0])

    def attempts(self) -> Iterator[int]:
        """:meth:`attempt` of each unit, in input order."""
        query = "SELECT idx, todo FROM units WHERE idx > ? ORDER BY idx LIMIT ?"
        return (todo for _, todo in self._scratch.stream(query))

    def index_of(self, unit_id: str) -> int | None:
        """The index of a unit; None if it is not in the plan."""
        row = self._scratch.one("SELECT idx FROM units WHERE unit_id = ?", (unit_id,))
        return None if row is None else int(row[0])

    @property
    def without_record(self) -> int:
        """Number of units without a commit."""
        return self._sum(
            "count(*)", "WHERE NOT EXISTS (SELECT 1 FROM records WHERE records.unit_id = units.unit_id)"
        )  # fmt: skip

    @property
    def work_units(self) -> int:
        """Number of marked units."""
        return self._sum("count(*)", "WHERE todo > 0")

    @property
    def largest_work(self) -> int:
        """Rows of the largest marked unit."""
        return self._sum("max(num_rows)", "WHERE todo > 0")

    def work(self) -> Iterator[Unit]:
        """The marked units, each with the attempt to make, in input order."""
        query = f"SELECT {', '.join(COLUMNS)}, todo FROM units WHERE todo > 0 AND idx > ? ORDER BY idx LIMIT ?"
        return (unit_of(row[:-1], attempt=row[-1]) for row in self._scratch.stream(query))

    def missing(self, most: int = 5) -> list[str]:
        """Ids of at most ``most`` marked units whose attempt has no record yet."""
        query = (
            "SELECT unit_id FROM units WHERE todo > coalesce("
            "(SELECT attempt FROM records WHERE records.unit_id = units.unit_id), 0) LIMIT ?"
        )
        return [unit_id for (unit_id,) in self._scratch.all(query, (most,))]

    def _sum(self, what: str, where: str = "") -> int:
        row = self._scratch.one(f"SELECT coalesce({what}, 0) FROM units {where}")
        return 0 if row is None else int(row[0])


def _row(unit: Unit) -> tuple[Any, ...]:
    first, *rest = (
        (piece.file, piece.first_row, piece.num_rows, piece.group, piece.start, piece.stop) for piece in unit.slices
    )
    file, first_row, _, group, start, stop = first
    more = json.dumps(rest) if rest else None
    return (unit.index, unit.unit_id, file, first_row, unit.num_rows, group, start, stop, more)
