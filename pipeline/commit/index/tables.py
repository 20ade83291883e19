"""The index of an output: its three tables, and the queries that join them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.commit.index.committed import COLUMNS, CommittedUnits, record_of
from pipeline.commit.index.planned import COLUMNS as UNIT_COLUMNS
from pipeline.commit.index.planned import PlannedUnits, unit_of
from pipeline.commit.index.published import PublishedUnits
from pipeline.commit.index.scratch import Scratch
from pipeline.types import CommitRecord, Totals, Unit

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
