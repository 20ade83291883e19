"""The ledger: the only truth about what is committed. Append-only segments, each put in one piece.

A unit is committed when a segment names it, and a segment is written only after the unit's results are
staged. Committing a unit twice is harmless. Failed rows that are done again give their unit another entry with a
higher attempt, which then counts. Results that turn out to be damaged are revoked by an entry of their own; the unit
is then done as a further attempt.

A segment bears the epoch of its writer's lease and its number in it. Who takes over from a writer that never gave its
lease back puts a fence behind the segments that are there: should that one wake up in the middle of a put, its segment
lies behind the fence, or bears an epoch from before the run began, and does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pipeline import layout
from pipeline.commit.index import CommittedUnits
from pipeline.commit.lease import Lease
from pipeline.commit.sealed import read_state, seal_lines, unseal_lines
from pipeline.damage import is_unreadable
from pipeline.errors import DamagedError, OutputError, SinkError
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Revocation

__all__ = ["Ledger", "LedgerReading", "fence_ledger", "read_ledger"]

_COMPACT_SEGMENTS = 64
"""Segments beyond those that would hold all records, from which on they are written anew."""
_SEGMENT_RECORDS = 1024
"""Records in a segment that is written anew."""
_READINGS = 5
"""How often reading begins anew while another process writes segments anew."""
_READ_SEGMENTS = 32
"""Segments read at once."""


@dataclass(kw_only=True)
class LedgerReading:
    """What was found in a ledger.

    Attributes:
        segments: how many there are.
        damaged: key and fault of each that cannot be read; what it named is done again.
        foreign: keys of those that writers put after they had lost their lease; they do not count.
    """

    segments: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def describe(self, url: str) -> list[str]:
        """One line for each file that does not count."""
        lines = [f"{url}/{key}: {fault}; the units that only this ledger segment names are done again"
                 for key, fault in self.damaged]  # fmt: skip
        lines += [f"{url}/{key}: put by a writer that had lost its lease; it does not count" for key in self.foreign]
        return lines


def read_ledger(storage: Storage, records: CommittedUnits, since: int = 0) -> LedgerReading:
    """Enter in the index what the ledger holds at this moment, without touching it; another process may be writing.

    Args:
        storage: the output.
        records: of an index, to be filled.
        since: the epoch in which the run was begun.
    """
    for _ in range(_READINGS):
        try:
            return _read_once(storage, records, since)
        except FileNotFoundError:
            records.clear()  # another process writes the segments anew: they are listed again
    raise OutputError(f"{storage.url}: its ledger is being written anew all the time. Try again.")


def _read_once(storage: Storage, records: CommittedUnits, since: int) -> LedgerReading:
    fences = _fences(storage)
    reading = LedgerReading()
    for keys in storage.walk(layout.LEDGER):
        ours = []
        for key in keys:
            segment = layout.segment_of(key)
            if segment is None:
                continue  # not ours
            if segment.epoch < since or segment.number >= fences.get(segment.epoch, segment.number + 1):
                reading.foreign.append(key)
            else:
                ours.append(key)
        reading.segments += len(ours)
        for first in range(0, len(ours), _READ_SEGMENTS):
            _enter(storage, ours[first : first + _READ_SEGMENTS], records, reading)
    return reading


def _enter(storage: Storage, keys: Sequence[str], records: CommittedUnits, reading: LedgerReading) -> None:
    committed: list[CommitRecord] = []
    revoked: list[Revocation] = []
    for key, data in zip(keys, _read(storage, keys, reading), strict=True):
        if data is None:
            continue
        try:
            entries = [_parsed(line) for line in unseal_lines(data)]
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
            reading.damaged.append((key, str(error)))
            continue
        committed += [entry for entry in entries if isinstance(entry, CommitRecord)]
        revoked += [entry for entry in entries if isinstance(entry, Revocation)]
    records.add(committed)
    records.revoke(revoked)


def _read(storage: Storage, keys: Sequence[str], reading: LedgerReading) -> list[bytes | None]:
    """Segments, None in the place of those that cannot be given back."""
    try:
        return list(storage.read_many(keys))
    except FileNotFoundError:
        raise
    except (OSError, SinkError) as error:
        if not is_unreadable(error):
            raise
    found: list[bytes | None] = []
    for key in keys:
        try:
            found.append(read_state(storage, key))
        except DamagedError as error:
            reading.damaged.append((key, str(error)))
            found.append(None)
    return found


def _parsed(line: str) -> CommitRecord | Revocation:
    return Revocation.from_json(line) or CommitRecord.from_json(line)


def _fences(storage: Storage) -> dict[int, int]:
    """Epoch -> number of its segments that count, where there is a fence. Of several the first one put counts least."""
    fences: dict[int, int] = {}
    for key in storage.keys(layout.FENCES):
        found = layout.fenced(key)
        if found is not None:
            epoch, segments = found
            fences[epoch] = min(segments, fences.get(epoch, segments))
    return fences


def fence_ledger(storage: Storage, epochs: Sequence[int]) -> None:
    """From now on no further segment of these epochs counts; of those that have a fence nothing changes."""
    wanted = set(epochs) - set(_fences(storage))
    if not wanted:
        return
    count = dict.fromkeys(wanted, 0)
    for key in itertools.chain.from_iterable(storage.walk(layout.LEDGER)):
        segment = layout.segment_of(key)
        if segment is not None and segment.epoch in wanted:
            count[segment.epoch] = max(count[segment.epoch], segment.number + 1)
    for epoch, segments in count.items():
        storage.put(layout.fence(epoch, segments), b"")


class Ledger:
    """Enters units in the output's state folder, and in the index. One writer.

    Attributes:
        records: the index's, equal to what the state folder holds.
    """

    def __init__(self, storage: Storage, records: CommittedUnits, lease: Lease) -> None:
        """``records``: of what the ledger holds already."""
        self._storage = storage
        self._lease = lease
        self._segments = 0
        self.records = records

    @classmethod
    def load(cls, storage: Storage, records: CommittedUnits, lease: Lease, since: int = 0) -> tuple[Ledger, list[str]]:
        """Read all segments; write them anew where they are many and small.

        Args:
            storage: the output.
            records: of an index, to be filled.
            lease: the caller's; ledgers of its predecessors are closed by this.
            since: the epoch in which the run was begun.

        Returns:
            The ledger, and a line for each segment that does not count.
        """
        fence_ledger(storage, lease.predecessors)
        reading = read_ledger(storage, records, since)
        ledger = cls(storage, records, lease)
        if reading.segments - len(records) // _SEGMENT_RECORDS > _COMPACT_SEGMENTS:
            ledger._compact()
        storage.delete_objects([key for key, _ in reading.damaged] + reading.foreign)
        return ledger, reading.describe(storage.url)

    def commit(self, records: Sequence[CommitRecord]) -> list[CommitRecord | None]:
        """Enter units whose results are staged; for each what it takes the place of, if anything."""
        before = [self.records.get(record.unit_id) if record.attempt > 1 else None for record in records]
        self._put(record.to_json() for record in records)
        self.records.add(records)
        return before

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """Enter that the results of units count no more."""
        self._put(revocation.to_json() for revocation in revocations)
        self.records.revoke(revocations)

    def _put(self, lines: Iterable[str]) -> None:
        key = layout.segment(self._lease.epoch, self._segments, self._lease.token)
        self._segments += 1
        self._storage.put(key, seal_lines(lines))

    def _compact(self) -> None:
        # Whatever a kill leaves behind here names the same units again, which changes nothing.
        source = itertools.chain((r.to_json() for r in self.records.revocations()), _lines(self.records))
        while batch := list(itertools.islice(source, _SEGMENT_RECORDS)):
            self._put(batch)
        # Only what earlier epochs have put, and only while the lease is ours: should this process sleep here, what a
        # successor has put, and what it goes by, stays.
        for keys in self._storage.walk(layout.LEDGER):
            self._lease.verify()
            self._storage.delete_objects([key for key in keys if self._is_earlier(key)])

    def _is_earlier(self, key: str) -> bool:
        segment = layout.segment_of(key)
        return segment is not None and segment.epoch < self._lease.epoch


def _lines(records: Iterable[CommitRecord]) -> Iterator[str]:
    return (record.to_json() for record in records)
