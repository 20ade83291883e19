"""Snapshots of the ledger, in addition to its segments: a database file with the checksum in its name.

A snapshot is a cache: readers load it instead of the segments that it covers, and read the others. One that is missing,
damaged or of another version is left out; the next holder of the lease makes another one from the segments. The lease
is verified before a snapshot is put, so all of the segments that it covers count for ever.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import layout
from pipeline.commit.index import CommittedUnits
from pipeline.commit.lease import Lease
from pipeline.errors import SinkError
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage

_CHUNK = 1 << 20


@dataclass(kw_only=True)
class Covered:
    """Segments whose entries an index holds.

    Attributes:
        below: writer of segments (``EPOCH-TOKEN``) -> number of its first segment that is not covered.
        entries: entries in these.
    """

    below: dict[str, int] = field(default_factory=dict)
    entries: int = 0

    def has(self, segment: layout.Segment) -> bool:
        """Whether a segment is covered."""
        return segment.number < self.below.get(segment.writer, 0)

    def add(self, segment: layout.Segment, entries: int) -> None:
        """Cover a segment of so many entries, and those that its writer put before it."""
        self.entries += entries
        self.below[segment.writer] = max(segment.number + 1, self.below.get(segment.writer, 0))


def load_snapshot(storage: Storage, records: CommittedUnits, since: int, notes: list[str]) -> Covered:
    """Load the latest snapshot of a ledger into an empty index; without one, nothing is covered.

    Args:
        storage: the output.
        records: table of the index.
        since: epoch at the begin of the run; snapshots of other runs do not count.
        notes: a line is added for each snapshot that is damaged.
    """
    for key in sorted(storage.keys(layout.SNAPSHOTS), reverse=True):
        begun, sha256 = layout.snapshot_of(key) or (None, "")
        if begun != since:
            continue
        with tempfile.TemporaryDirectory(prefix="wedlm-") as folder:
            path = Path(folder) / "ledger"
            try:
                with path.open("wb") as file:
                    check_object(storage, key, sha256, file)
                facts = records.load(str(path))
            except (OSError, SinkError, FoundDamageError) as error:
                if storage.exists(key):  # else its successor is there
                    notes.append(f"{storage.url}/{key}: cannot be loaded ({error}); the ledger was read instead")
                continue
        if facts is not None:
            return Covered(below=dict(facts["below"]), entries=int(facts["entries"]))
    return Covered()


def save_snapshot(storage: Storage, lease: Lease, records: CommittedUnits, covered: Covered, since: int) -> None:
    """Put a snapshot of the index, and remove the earlier ones.

    Raises:
        LeaseLostError: another run took over; nothing is put.
        OSError, SinkError: it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="wedlm-") as folder:
        path = Path(folder) / "ledger"
        records.save(str(path), {"below": covered.below, "entries": covered.entries})
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        key = layout.snapshot(lease.epoch, covered.entries, since, digest)
        lease.verify()
        with path.open("rb") as file, storage.create(key) as stream:
            shutil.copyfileobj(file, stream, _CHUNK)
    lease.verify()
    storage.delete_objects([other for other in storage.keys(layout.SNAPSHOTS) if other != key])
