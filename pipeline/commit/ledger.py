"""The ledger: the record of committed units, as append-only segments that are each written in one put.

A unit is committed once a segment names it; of several entries of a unit the highest attempt counts. Damaged results
are revoked by an entry of their own. A segment's name holds the epoch of its writer's lease and a running number; a
successor puts a fence after the segments of that epoch, so that later ones do not count.

Of a large ledger there are snapshots (:mod:`pipeline.commit.ledger_snapshot`), which are read faster than its segments.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pipeline import layout
from pipeline.commit.index import CommittedUnits, row_of
from pipeline.commit.lease import Lease
from pipeline.commit.ledger_snapshot import Covered, load_snapshot, save_snapshot
from pipeline.commit.sealed import read_state, seal_lines, unseal_lines
from pipeline.errors import DamagedError, OutputError, SinkError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead
from pipeline.types import CommitRecord, Revocation

_COMPACT_SEGMENTS = 64
"""Segments beyond the number needed for all records; with more, the ledger is compacted."""
_SEGMENT_RECORDS = 1024
"""Records per segment after compaction."""
_SPARED_RECORDS = 100
"""Records per segment at least, of segments that are left as they are while a snapshot covers them."""
_READINGS = 5
"""How often reading starts again while another process compacts the ledger."""
_SNAPSHOT_ENTRIES = 65_536
"""Entries, or planned units, that are worth a snapshot: reading so many takes a second."""
_SNAPSHOT_SHARE = 0.05
"""While units are committed there is another snapshot as soon as the last one lacks this share of the entries."""

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class LedgerReading:
    """The result of reading a ledger.

    Attributes:
        segments: number of segments that count.
        last: epoch -> number of its last segment.
        damaged: key and fault of each segment that cannot be read; the units that only it names are generated again.
        foreign: keys of segments that writers put after they had lost their lease; they do not count.
        covered: the segments that count and could be read.
        loose: entries of these that no snapshot holds.
        spared: segments that a snapshot covers, as far as listing them costs less than compacting them.
        notes: a line for each snapshot that could not be loaded.
    """

    segments: int = 0
    last: dict[int, int] = field(default_factory=dict)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    covered: Covered = field(default_factory=Covered)
    loose: int = 0
    spared: int = 0
    notes: list[str] = field(default_factory=list)

    def describe(self, url: str) -> list[str]:
        """One line for each segment that does not count, and for each snapshot that is not used."""
        lines = [*self.notes]
        lines += [f"{url}/{key}: {fault}; the units that only this ledger segment names are done again"
                 for key, fault in self.damaged]  # fmt: skip
        lines += [f"{url}/{key}: put by a writer that had lost its lease; it does not count" for key in self.foreign]
        return lines


def read_ledger(storage: Storage, records: CommittedUnits, since: int = 0) -> LedgerReading:
    """Enter the ledger's records in the index. Read-only; another process may be writing the ledger meanwhile.

    Segments of epochs before ``since`` do not count.
    """
    for _ in range(_READINGS):
        try:
            return _read_once(storage, records, since)
        except FileNotFoundError:
            records.clear()  # another process compacts the ledger: list it again
    raise OutputError(f"{storage.url}: its ledger is rewritten all the time. Try again.")


def _read_once(storage: Storage, records: CommittedUnits, since: int, *, loads: bool = True) -> LedgerReading:
    fences = _fences(storage)
    reading = LedgerReading()
    known = load_snapshot(storage, records, since, reading.notes) if loads else Covered()
    is_ours = not known.below
    reading.covered = replace(known, below=dict(known.below))
    for keys in storage.walk(layout.LEDGER):
        ours = []
        for key in keys:
            segment = layout.segment_of(key)
            if segment is None:
                continue  # not ours
            reading.last[segment.epoch] = max(segment.number, reading.last.get(segment.epoch, -1))
            if segment.epoch < since or segment.number >= fences.get(segment.epoch, segment.number + 1):
                reading.foreign.append(key)
            else:
                reading.segments += 1
                if known.has(segment):
                    is_ours = True
                    reading.spared = min(reading.spared + 1, known.entries // _SPARED_RECORDS)
                else:
                    ours.append(key)
        for key, lines in zip(ours, map_ahead(partial(_lines_of, storage), ours), strict=True):
            _enter(key, lines, records, reading)
    if not is_ours:
        # No segment is there that it covers: it is of another output, or the ledger was compacted since.
        records.clear()
        return _read_once(storage, records, since, loads=False)
    return reading


def _lines_of(storage: Storage, key: str) -> list[str] | DamagedError:
    """The lines of a segment, or its damage."""
    try:
        return unseal_lines(read_state(storage, key))
    except DamagedError as error:
        return error


def _enter(key: str, lines: list[str] | DamagedError, records: CommittedUnits, reading: LedgerReading) -> None:
    try:
        if isinstance(lines, DamagedError):
            raise lines
        entries = [json.loads(line) for line in lines]
        committed = [row_of(entry) for entry in entries if "revoked" not in entry]
        revoked = [Revocation(**entry["revoked"]) for entry in entries if "revoked" in entry]
    except (DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
        reading.damaged.append((key, str(error)))
        return
    reading.loose += len(entries)
    if (segment := layout.segment_of(key)) is not None:
        reading.covered.add(segment, len(entries))
    records.enter(committed)
    records.revoke(revoked)


def _fences(storage: Storage) -> dict[int, int]:
    """Epoch -> number of its segments that count, for epochs with a fence. Of several fences the lowest counts."""
    fences: dict[int, int] = {}
    for key in storage.keys(layout.FENCES):
        found = layout.fenced(key)
        if found is not None:
            epoch, segments = found
            fences[epoch] = min(segments, fences.get(epoch, segments))
    return fences


def fence_ledger(storage: Storage, epochs: Sequence[int]) -> None:
    """Put fences: from now on no further segment of these epochs counts. Existing fences stay as they are."""
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
    """Commits units: writes segments and enters them in the index. For the holder of the lease.

    Attributes:
        records: table of the index, kept equal to the ledger.
    """

    def __init__(self, storage: Storage, records: CommittedUnits, lease: Lease, since: int = 0) -> None:
        """``records``: table of the index with the ledger's records; ``since``: the epoch of the run's begin."""
        self._storage = storage
        self._lease = lease
        self._segments = 0
        self._since, self._covered, self._loose = since, Covered(), 0
        self.records = records

    @classmethod
    def load(cls, storage: Storage, records: CommittedUnits, lease: Lease, since: int = 0) -> tuple[Ledger, list[str]]:
        """Read all segments; compact them if they are many and small.

        Segments of epochs before ``since`` do not count. Fences are put for the predecessors of the lease.

        Returns:
            The ledger, and a line for each segment that does not count.
        """
        fence_ledger(storage, lease.predecessors)
        reading = read_ledger(storage, records, since)
        ledger = cls(storage, records, lease, since)
        ledger._segments = 1 + reading.last.get(lease.epoch, -1)  # of an earlier round of this run
        ledger._covered, ledger._loose = reading.covered, reading.loose
        if reading.segments - len(records) // _SEGMENT_RECORDS > _COMPACT_SEGMENTS + reading.spared:
            ledger._compact()
        storage.delete_objects([key for key, _ in reading.damaged] + reading.foreign)
        return ledger, reading.describe(storage.url)

    def commit(self, records: Sequence[CommitRecord]) -> list[CommitRecord | None]:
        """Commit units whose results are staged; returns for each the record that it replaces, if any."""
        before = [self.records.get(record.unit_id) if record.attempt > 1 else None for record in records]
        self._put([record.to_json() for record in records])
        self.records.add(records)
        self.keep_snapshot(_SNAPSHOT_SHARE)
        return before

    def keep_snapshot(self, share: float = 0.0, planned: int = 0) -> None:
        """Make a snapshot if it is worth it. Without one the output is whole, so a fault is no more than a warning.

        Args:
            share: least share of the entries that the last snapshot lacks.
            planned: units of a plan that no snapshot holds.

        Raises:
            LeaseLostError: another run took over.
        """
        if self._loose < max(_SNAPSHOT_ENTRIES, share * self._covered.entries) and planned < _SNAPSHOT_ENTRIES:
            return
        try:
            save_snapshot(self._storage, self._lease, self.records, self._covered, self._since)
        except (OSError, SinkError) as error:
            _LOG.warning("%s: no snapshot of the ledger could be made (%s)", self._storage.url, error)
        self._loose = 0

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """Enter that the results of these units no longer count."""
        self._put([revocation.to_json() for revocation in revocations])
        self.records.revoke(revocations)

    def _put(self, lines: Sequence[str]) -> None:
        key = layout.segment(self._lease.epoch, self._segments, self._lease.token)
        self._segments += 1
        self._storage.put(key, seal_lines(lines))
        self._loose += len(lines)
        if (segment := layout.segment_of(key)) is not None:
            self._covered.add(segment, len(lines))

    def _compact(self) -> None:
        # A kill in here leaves segments that name the same units twice, which changes nothing.
        source = itertools.chain((r.to_json() for r in self.records.revocations()), _lines(self.records))
        while batch := list(itertools.islice(source, _SEGMENT_RECORDS)):
            self._put(batch)
        # Remove segments of earlier epochs only, and only while the lease is ours: if this process sleeps here, the
        # segments that a successor wrote or relies on stay.
        for keys in self._storage.walk(layout.LEDGER):
            self._lease.verify()
            self._storage.delete_objects([key for key in keys if self._is_earlier(key)])

    def _is_earlier(self, key: str) -> bool:
        segment = layout.segment_of(key)
        return segment is not None and segment.epoch < self._lease.epoch


def _lines(records: Iterable[CommitRecord]) -> Iterator[str]:
    return (record.to_json() for record in records)
