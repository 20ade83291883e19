"""Discarding an output, whatever is there, so that a kill in the middle leaves neither the old run nor half of it.

A mark is put first: from then on nothing of the old run counts, and whoever begins next finishes the removal. The
published files go before the state, and the mark goes last. Nothing that is removed is read first: what is damaged is
as easy to discard as what is whole.

Should the one who discards fall asleep, or another writer of the old run, and wake up when a new run is there: leases
stay, so what it puts bears an epoch from before the new run began; its mark, if it was not put before, meets a fence;
and the new run counts its publications from a number on that nobody has used, so what it removes is not the new run's.
"""

from __future__ import annotations

import uuid

from pipeline import layout
from pipeline.commit.lease import Lease
from pipeline.errors import LeaseLostError
from pipeline.storage.protocol import Storage

__all__ = ["discard", "finish_discard", "parts_in", "remove_parts"]

_BEGUN = b"discard "


def discard(storage: Storage, lease: Lease) -> int:
    """Remove a run's state and everything it published.

    Returns:
        The number from which the publications of the next run are to be counted.

    Raises:
        LeaseLostError: another run took over.
    """
    if not storage.put_new(layout.discard_mark(lease.epoch), _BEGUN + uuid.uuid4().hex.encode()):
        raise LeaseLostError(f"{storage.url}: another run took over this output. This one removes nothing.")
    return _remove(storage, lease)


def finish_discard(storage: Storage, lease: Lease) -> int | None:
    """Complete what other processes began to discard; those that never gave their lease back can begin no more.

    Returns:
        As :func:`discard`; None where nothing had been begun.

    Raises:
        LeaseLostError: another run took over; it goes on with the removal.
    """
    for epoch in lease.predecessors:
        storage.put_new(layout.discard_mark(epoch), b"fenced off by " + uuid.uuid4().hex.encode())
    return _remove(storage, lease) if _marks(storage) else None


def parts_in(storage: Storage, folder: str) -> list[str]:
    """Keys of the files in a folder that a run may have put there."""
    return [key for key in storage.keys(folder) if layout.is_part(key.removeprefix(f"{folder}/"))]


def remove_parts(storage: Storage, folder: str) -> bool:
    """Remove what a run may have put in a folder; whether the folder is gone: somebody else's files stay in it."""
    storage.delete_objects(parts_in(storage, folder))
    if storage.keys(folder):
        return False
    storage.delete(folder)
    return True


def _remove(storage: Storage, lease: Lease) -> int:
    folders = [name for name in storage.folders() if layout.is_publication(name)]
    used = [layout.slot_of(name)[0] for name in folders]
    used += [layout.number_of(key)[0] for kind in (layout.PUBLICATIONS, layout.UNITS) for key in storage.keys(kind)]
    # Whoever is asleep is at work on the number behind these, at most.
    first = 2 + max(used, default=-1) if lease.predecessors else 0
    for name in folders:
        lease.verify()
        if not remove_parts(storage, name):
            first = max(first, 1 + layout.slot_of(name)[0])
    for folder in (layout.PUBLISH, layout.STAGED):
        lease.verify()
        storage.delete(folder)
    kept = (f"{layout.LEASES}/", f"{layout.DISCARDED}/")
    for keys in storage.walk(layout.STATE):
        lease.verify()
        storage.delete_objects([key for key in keys if not key.startswith(kept)])
    storage.delete_objects(_marks(storage))  # the fences stay: whom they hold off may be asleep
    return first


def _marks(storage: Storage) -> list[str]:
    """Keys of the discards that were begun and are not complete."""
    return [key for key in storage.keys(layout.DISCARDED) if storage.read(key).startswith(_BEGUN)]
