"""The ledger: the only truth about what is committed. Append-only segments, each put in one piece.

A unit is committed when a segment names it, and a segment is written only after the unit's results are
staged. Committing a unit twice is harmless: the staged name is deterministic. Failed rows that are done again
give their unit another entry with a higher attempt, which then counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from pipeline import layout
from pipeline.errors import OutputError
from pipeline.storage import Storage
from pipeline.types import CommitRecord

__all__ = ["Ledger", "committed", "latest"]

_COMPACT_SEGMENTS = 64


def latest(records: Iterable[CommitRecord]) -> dict[str, CommitRecord]:
    """Unit -> its record of the highest attempt."""
    return {record.unit_id: record for record in sorted(records, key=lambda record: record.attempt)}


def committed(storage: Storage) -> dict[str, CommitRecord]:
    """What the ledger holds at this moment, without touching it; another process may be writing.

    Raises:
        OutputError: a segment is damaged.
    """
    return latest(_read(storage, storage.keys(layout.LEDGER)))


def _read(storage: Storage, keys: Sequence[str]) -> list[CommitRecord]:
    records: list[CommitRecord] = []
    for key, segment in zip(keys, storage.read_many(keys), strict=True):
        try:
            records += [CommitRecord.from_json(line) for line in segment.decode().splitlines()]
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{storage.url}/{key}: not a readable ledger segment ({error!r}). Remove it: its units are redone."
            ) from error
    return records


class Ledger:
    """Committed units by id, in memory and in the output's state folder. One writer."""

    def __init__(self, storage: Storage, records: Iterable[CommitRecord] = ()) -> None:
        self._storage = storage
        self._session = uuid.uuid4().hex[:12]
        self._segments = 0
        self.records: dict[str, CommitRecord] = latest(records)

    @classmethod
    def load(cls, storage: Storage) -> Ledger:
        """Read all segments.

        Raises:
            OutputError: a segment is damaged.
        """
        keys = storage.keys(layout.LEDGER)
        records = _read(storage, keys)
        ledger = cls(storage, records)
        if len(keys) > _COMPACT_SEGMENTS:
            ledger._compact(keys)
        return ledger

    def commit(self, records: Sequence[CommitRecord]) -> None:
        """Enter units whose results are staged."""
        self._put(records)
        self.records.update((r.unit_id, r) for r in records)

    def attempt(self, unit_id: str) -> int:
        """The attempt that is committed; 0 where none is."""
        record = self.records.get(unit_id)
        return 0 if record is None else record.attempt

    def _put(self, records: Iterable[CommitRecord]) -> None:
        key = f"{layout.LEDGER}/{self._session}-{self._segments:08d}.jsonl"
        self._segments += 1
        self._storage.put(key, "".join(f"{record.to_json()}\n" for record in records).encode())

    def _compact(self, keys: Sequence[str]) -> None:
        # Whatever a kill leaves behind here names the same units again, which changes nothing.
        self._put(self.records.values())
        self._storage.delete_objects(keys)
