"""Index table of published units (those of each visible publication, in order), and the index that joins all tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.commit.index.committed import COLUMNS, CommittedUnits, record_of
from pipeline.commit.index.planned import COLUMNS as UNIT_COLUMNS
from pipeline.commit.index.planned import PlannedUnits, unit_of
from pipeline.commit.index.scratch import Scratch
from pipeline.types import CommitRecord, Place, Totals, Unit

_RECORD = ", ".join(f"r.{name}" for name in COLUMNS)
_UNIT = ", ".join(f"u.{name}" for name in UNIT_COLUMNS)
_FIRST_OF_RECORD = 10
_FIRST_OF_UNIT = _FIRST_OF_RECORD + len(COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedUnit:
    """A unit as it was published: its attempt, the number of its output rows, and how many of them are failed rows."""

    unit_id: str
    attempt: int
    rows: int
    failed: int

    @classmethod
    def of(cls, record: CommitRecord) -> PublishedUnit:
        """From a ledger record."""
        return cls(
            unit_id=record.unit_id, attempt=record.attempt, rows=record.output_rows, failed=record.failed_rows
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedUnit:
    """A published unit, joined with the ledger and the plan.

    Attributes:
        unit: as it was published.
        part: number of the part that holds its rows.
        place: its rows in that part.
        record: its latest ledger record; None if the ledger has none.
        planned: its planned unit; None if the plan has none or was not made.
    """

    unit: PublishedUnit
    part: int
    place: Place
    record: CommitRecord | None
    planned: Unit | None

    @property
    def latest(self) -> CommitRecord | None:
        """The record, if its attempt is later than the published one."""
        return self.record if self.record is not None and self.record.attempt > self.unit.attempt else None


class PublishedUnits:
    """The tables of parts and of published units. A publication and its revisions share a ``position``."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        scratch.run(
            "CREATE TABLE parts (position INTEGER, part INTEGER, key TEXT, sha256 TEXT, format TEXT, "
            "PRIMARY KEY (position, part))"
        )
        scratch.run(
            "CREATE TABLE published (position INTEGER, seq INTEGER, unit_id TEXT, attempt INTEGER, rows INTEGER, "
            "failed INTEGER, part INTEGER, first_row INTEGER, PRIMARY KEY (position, seq)) WITHOUT ROWID"
        )
        scratch.run("CREATE INDEX published_by_id ON published (unit_id)")

    def replace(
        self,
        position: int,
        keys: Sequence[str],
        shas: Sequence[str],
        format: str,
        units: Iterable[tuple[PublishedUnit, int, int]],
    ) -> None:
        """Enter a publication; it replaces the one at its position.

        ``units``: in order, each with the number of its part and of its first row in that part.
        """
        for name in ("parts", "published"):
            self._scratch.run(f"DELETE FROM {name} WHERE position = ?", (position,))
        parts = ((position, i, key, sha, format) for i, (key, sha) in enumerate(zip(keys, shas, strict=True)))
        self._scratch.write("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", parts)
        rows = (
            (position, seq, unit.unit_id, unit.attempt, unit.rows, unit.failed, part, first_row)
            for seq, (unit, part, first_row) in enumerate(units)
        )
        self._scratch.write("INSERT INTO published VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def __len__(self) -> int:
        """Units that are published, each counted once."""
        row = self._scratch.one("SELECT count(DISTINCT unit_id) FROM published")
        return 0 if row is None else int(row[0])

    def units(self, position: int) -> Iterator[IndexedUnit]:
        """The units of a publication, in its order."""
        query = (
            f"SELECT seq, p.unit_id, p.attempt, p.rows, p.failed, p.part, p.first_row, "
            f"parts.key, parts.format, parts.sha256, {_RECORD}, {_UNIT} FROM published p "
            "CROSS JOIN parts ON parts.position = p.position AND parts.part = p.part "
            "LEFT JOIN records r ON r.unit_id = p.unit_id LEFT JOIN units u ON u.unit_id = p.unit_id "
            "WHERE p.position = ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        for row in self._scratch.stream(query, (position,)):
            _, unit_id, attempt, rows, failed, part, first_row, key, format, sha256 = row[:_FIRST_OF_RECORD]
            record, unit = row[_FIRST_OF_RECORD:_FIRST_OF_UNIT], row[_FIRST_OF_UNIT:]
            yield IndexedUnit(
                unit=PublishedUnit(unit_id=unit_id, attempt=attempt, rows=rows, failed=failed),
                part=part,
                place=Place(key=key, first_row=first_row, num_rows=rows, format=format, sha256=sha256),
                record=None if record[0] is None else record_of(record),
                planned=None if unit[0] is None else unit_of(unit),
            )

    def positions(self) -> list[int]:
        """Positions of the publications."""
        return [row[0] for row in self._scratch.all("SELECT DISTINCT position FROM published ORDER BY position")]

    def place(self, unit_id: str, attempt: int) -> Place | None:
        """The published output rows of an attempt at a unit; None if that attempt is not published."""
        row = self._scratch.one(
            "SELECT key, first_row, rows, format, sha256 FROM published p "
            "JOIN parts ON parts.position = p.position AND parts.part = p.part "
            "WHERE unit_id = ? AND attempt = ? ORDER BY p.position DESC",
            (unit_id, attempt),
        )
        if row is None:
            return None
        key, first_row, rows, format, sha256 = row
        return Place(key=key, first_row=first_row, num_rows=rows, format=format, sha256=sha256)

    def unplanned(self) -> str | None:
        """The id of a unit that is published and not in the plan."""
        row = self._scratch.one(
            "SELECT unit_id FROM published p WHERE NOT EXISTS (SELECT 1 FROM units u WHERE u.unit_id = p.unit_id)"
        )
        return None if row is None else str(row[0])

    def attempts(self, unit_ids: Sequence[str]) -> dict[str, int]:
        """Published attempt of each of these units; unpublished units are left out."""
        query = (
            "SELECT unit_id, max(attempt) FROM published WHERE unit_id IN (SELECT value FROM json_each(?)) "
            "GROUP BY unit_id"
        )
        return dict(self._scratch.all(query, (json.dumps(list(unit_ids)),)))

    def outdated(self) -> set[int]:
        """Positions of publications with a unit that has a later attempt in the ledger."""
        query = (
            "SELECT DISTINCT p.position FROM published p CROSS JOIN records r ON r.unit_id = p.unit_id "
            "WHERE r.attempt > p.attempt"
        )
        return {position for (position,) in self._scratch.all(query)}

    def duplicates(self) -> Iterator[tuple[str, int]]:
        """Units that are published more than once, and how often."""
        query = (
            "SELECT unit_id, count(*) FROM published WHERE unit_id > ? GROUP BY unit_id HAVING count(*) > 1 "
            "ORDER BY unit_id LIMIT ?"
        )
        return ((unit_id, count) for unit_id, count in self._scratch.stream(query, first=""))


_SETTLED = "EXISTS (SELECT 1 FROM units u WHERE u.unit_id = records.unit_id AND u.todo = 0)"


class Index:
    """The index; a context manager that drops its database at the end.

    Attributes:
        units: planned units.
        records: committed units.
        published: published units.
    """

    def __init__(self) -> None:
        self._scratch = Scratch()
        self.units = PlannedUnits(self._scratch)
        self.records = CommittedUnits(self._scratch)
        self.published = PublishedUnits(self._scratch)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.close()

    def publishable(self, *, failed_only: bool = False) -> Iterator[CommitRecord]:
        """Records of planned units that no publication holds, in input order."""
        names = ", ".join(f"r.{name}" for name in COLUMNS)
        query = (
            f"SELECT u.idx, {names} FROM units u CROSS JOIN records r ON r.unit_id = u.unit_id "
            f"WHERE {'r.failed_rows > 0 AND ' if failed_only else ''}u.idx > ? AND NOT EXISTS "
            "(SELECT 1 FROM published p WHERE p.unit_id = u.unit_id) ORDER BY u.idx LIMIT ?"
        )
        return (record_of(row[1:]) for row in self._scratch.stream(query))

    def committed_units(self) -> Iterator[Unit]:
        """Planned units that have a record, in input order, each with the recorded checksum of its input rows."""
        names = ", ".join(f"u.{name}" for name in UNIT_COLUMNS)
        query = (
            f"SELECT {names}, r.attempt, r.input_sha256 FROM units u CROSS JOIN records r ON r.unit_id = u.unit_id "
            "WHERE u.idx > ? ORDER BY u.idx LIMIT ?"
        )
        return (
            replace(unit_of(row[:-2], attempt=row[-2]), input_sha256=row[-1]) for row in self._scratch.stream(query)
        )

    def unplanned_records(self, file_keys: Iterable[str]) -> Iterator[CommitRecord]:
        """Records of rows of these files whose unit is not planned."""
        names = ", ".join(COLUMNS)
        query = (
            f"SELECT rowid, {names} FROM records WHERE rowid > ? AND NOT EXISTS "
            "(SELECT 1 FROM units u WHERE u.unit_id = records.unit_id) ORDER BY rowid LIMIT ?"
        )
        known = frozenset(file_keys)
        return (record for row in self._scratch.stream(query) if (record := record_of(row[1:])).file_key in known)

    def stranded(self) -> CommitRecord | None:
        """A record whose unit is neither published nor planned, as its input is gone; None if there is none."""
        names = ", ".join(COLUMNS)
        row = self._scratch.one(
            f"SELECT {names} FROM records r WHERE NOT EXISTS (SELECT 1 FROM published p WHERE p.unit_id = r.unit_id) "
            "AND NOT EXISTS (SELECT 1 FROM units u WHERE u.unit_id = r.unit_id) LIMIT 1"
        )
        return None if row is None else record_of(row)

    def drop_overtaken(self) -> int:
        """Drop records that are older than the published attempt, whose own record is lost; returns how many."""
        overtaken = "attempt < (SELECT max(attempt) FROM published p WHERE p.unit_id = records.unit_id)"
        row = self._scratch.one(f"SELECT count(*) FROM records WHERE {overtaken}")
        self._scratch.run(f"DELETE FROM records WHERE {overtaken}")
        return 0 if row is None else int(row[0])

    def settled(self) -> Totals:
        """Sums over the records of planned units that need no work in this run."""
        return self.records.totals(_SETTLED)
