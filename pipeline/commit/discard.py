"""Discards an output (``mode="new"``) so that a kill in the middle leaves neither the old run nor a part of it.

First a mark is put: from then on nothing of the old run counts, and the next run completes the removal. Then the
published files are removed, then the state, and last the mark. No file is read before it is removed, so damaged files
are no obstacle.

A writer of the old run, or the process that discards it, may sleep and wake up during the new run. It does no harm.
Leases stay, so whatever it puts has an epoch from before the new run. If its mark was not put yet, a fence is in its
place. And it removes nothing of the new run, which numbers its publications from a number that nobody has used.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pipeline import layout
from pipeline.commit.lease import Lease
from pipeline.errors import LeaseLostError
from pipeline.sinks.dataset_card import NAME, is_card
from pipeline.storage.protocol import Storage

_BEGUN = b"discard "


def discard(storage: Storage, lease: Lease, keep: Sequence[str] = ()) -> int:
    """Remove a run's state and everything it published.

    Args:
        storage: the output.
        lease: the caller's lease on it.
        keep: keys of the state that stay: rows in memory that the next run has written there already.

    Returns: The first number for publications of the next run.

    Raises:
        LeaseLostError: another run took over.
    """
    if not storage.put_new(layout.discard_mark(lease.epoch), _BEGUN + uuid.uuid4().hex.encode()):
        raise LeaseLostError(f"{storage.url}: another run took over this output. This one removes nothing.")
    return _remove(storage, lease, keep)


def finish_discard(storage: Storage, lease: Lease) -> int | None:
    """Complete a discard that another process began; put fences so that no former lease holder can begin one.

    Returns:
        As :func:`discard`; None if no discard had been begun.

    Raises:
        LeaseLostError: another run took over; it goes on with the removal.
    """
    for epoch in lease.predecessors:
        storage.put_new(layout.discard_mark(epoch), b"fenced off by " + uuid.uuid4().hex.encode())
    return _remove(storage, lease) if _marks(storage) else None


def is_discarding(storage: Storage) -> bool:
    """Whether a discard was begun and is not complete."""
    return bool(_marks(storage))


def parts_in(storage: Storage, folder: str) -> list[str]:
    """Keys of the files in a folder that a run may have put there."""
    return [key for key in storage.keys(folder) if layout.is_part(key.removeprefix(f"{folder}/"))]


def remove_parts(storage: Storage, folder: str) -> bool:
    """Remove a run's files from a folder; True if the folder is gone, False if files of others stay in it."""
    parts = parts_in(storage, folder)
    if len(parts) == len(storage.keys(folder)):
        storage.delete(folder)  # at once, where the storage can
        return True
    storage.delete_objects(parts)
    return False


def _remove(storage: Storage, lease: Lease, keep: Sequence[str] = ()) -> int:
    folders = [name for name in storage.folders() if layout.is_publication(name)]
    used = [layout.position_of(name)[0] for name in folders]
    used += [layout.number_of(key)[0] for kind in (layout.PUBLICATIONS, layout.UNITS) for key in storage.keys(kind)]
    # A sleeping writer works at most on the number after these.
    first = 2 + max(used, default=-1) if lease.predecessors else 0
    for name in folders:
        lease.verify()
        if not remove_parts(storage, name):
            first = max(first, 1 + layout.position_of(name)[0])
    if storage.exists(NAME) and is_card(storage.read(NAME)):
        storage.delete_objects([NAME])
    for folder in (layout.PUBLISH, layout.STAGED):
        lease.verify()
        storage.delete(folder)
    kept = (f"{layout.LEASES}/", f"{layout.DISCARDED}/")
    for keys in storage.walk(layout.STATE):
        lease.verify()
        storage.delete_objects([key for key in keys if not key.startswith(kept) and key not in keep])
    storage.delete_objects(_marks(storage))  # the fences stay: the writers they stop may be asleep
    return first


def _marks(storage: Storage) -> list[str]:
    """Keys of the marks of discards that are not complete."""
    return [key for key in storage.keys(layout.DISCARDED) if storage.read(key).startswith(_BEGUN)]
