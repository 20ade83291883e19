"""The three tables together, and what only all of them can tell."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.index.committed import COLUMNS, CommittedUnits, record_of
from pipeline.index.planned import PlannedUnits
from pipeline.index.published import PublishedUnits
from pipeline.index.scratch import Scratch
from pipeline.types import CommitRecord, Totals

__all__ = ["Index"]

_SETTLED = "EXISTS (SELECT 1 FROM units u WHERE u.unit_id = records.unit_id AND u.todo = 0)"


class Index:
    """A context manager: what it holds is gone when the block ends.

    Attributes:
        units: the plan.
        records: the ledger's.
        published: what is visible.
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

    def settled(self) -> Totals:
        """Sums over the records of planned units that are not marked as work."""
        return self.records.totals(_SETTLED)
