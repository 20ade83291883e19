"""The ledger: the only truth about what is committed. Append-only segments, each put in one piece.

A unit is committed when a segment names it, and a segment is written only after the unit's results are
staged. Committing a unit twice is harmless: the staged name is deterministic. Failed rows that are done again
give their unit another entry with a higher attempt, which then counts.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence

from pipeline import layout
from pipeline.errors import OutputError
from pipeline.index import CommittedUnits
from pipeline.storage import Storage
from pipeline.types import CommitRecord

__all__ = ["Ledger", "read_ledger"]

_COMPACT_SEGMENTS = 64
"""Segments beyond those that would hold all records, from which on they are written anew."""
_SEGMENT_RECORDS = 1024
"""Records in a segment that is written anew."""
_READ_SEGMENTS = 32
"""Segments read at once."""


def read_ledger(storage: Storage, records: CommittedUnits) -> int:
    """Enter in the index what the ledger holds at this moment, without touching it; another process may be writing.

    Returns:
        How many segments there are.

    Raises:
        OutputError: a segment is damaged.
    """
    segments = 0
    for keys in storage.walk(layout.LEDGER):
        segments += len(keys)
        for first in range(0, len(keys), _READ_SEGMENTS):
            records.add(_records(storage, keys[first : first + _READ_SEGMENTS]))
    return segments


def _records(storage: Storage, keys: Sequence[str]) -> Iterator[CommitRecord]:
    for key, segment in zip(keys, storage.read_many(keys), strict=True):
        try:
            yield from [CommitRecord.from_json(line) for line in segment.decode().splitlines()]
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{storage.url}/{key}: not a readable ledger segment ({error!r}). Remove it: its units are redone."
            ) from error


class Ledger:
    """Enters units in the output's state folder, and in the index. One writer.

    Attributes:
        records: the index's, equal to what the state folder holds.
    """

    def __init__(self, storage: Storage, records: CommittedUnits) -> None:
        """``records``: of what the ledger holds already."""
        self._storage = storage
        self._session = uuid.uuid4().hex[:12]
        self._segments = 0
        self.records = records

    @classmethod
    def load(cls, storage: Storage, records: CommittedUnits) -> Ledger:
        """Read all segments; write them anew where they are many and small.

        Args:
            storage: the output.
            records: of an index, to be filled.

        Raises:
            OutputError: a segment is damaged.
        """
        segments = read_ledger(storage, records)
        ledger = cls(storage, records)
        if segments - len(records) // _SEGMENT_RECORDS > _COMPACT_SEGMENTS:
            ledger._compact()
        return ledger

    def commit(self, records: Sequence[CommitRecord]) -> list[CommitRecord | None]:
        """Enter units whose results are staged; for each what it takes the place of, if anything."""
        before = [self.records.get(record.unit_id) if record.attempt > 1 else None for record in records]
        self._put(records)
        self.records.add(records)
        return before

    def _put(self, records: Iterable[CommitRecord]) -> None:
        key = f"{layout.LEDGER}/{self._session}-{self._segments:08d}.jsonl"
        self._segments += 1
        self._storage.put(key, "".join(f"{record.to_json()}\n" for record in records).encode())

    def _compact(self) -> None:
        # Whatever a kill leaves behind here names the same units again, which changes nothing.
        source = iter(self.records)
        while batch := list(itertools.islice(source, _SEGMENT_RECORDS)):
            self._put(batch)
        # A former holder of the lease that is not dead but asleep may have put a segment since we read: without it
        # its units are done once more, as if it had been dead.
        for keys in self._storage.walk(layout.LEDGER):
            self._storage.delete_objects([key for key in keys if f"/{self._session}-" not in key])
