"""Discarding an output, so that a kill in the middle leaves neither the old run nor half of it.

A marker is put first: from then on nothing of the old run counts, and whoever begins next finishes the removal.
The published folders go before the records that name them, and the marker goes last.
"""

from __future__ import annotations

from pipeline import layout
from pipeline.publications import decided, visible_name
from pipeline.storage import Storage

__all__ = ["discard", "finish_discard"]


def discard(storage: Storage) -> None:
    """Remove a run's state and everything it published; leases stay."""
    storage.put(layout.DISCARDED, b"")
    finish_discard(storage)


def finish_discard(storage: Storage) -> None:
    """Complete what a killed process began to discard; nothing to do where none did."""
    if not storage.exists(layout.DISCARDED):
        return
    for record in decided(storage):
        storage.delete(visible_name(record))
    kept = (f"{layout.LEASES}/", layout.DISCARDED)
    for keys in storage.walk(layout.STATE):
        storage.delete_objects([key for key in keys if not key.startswith(kept)])
    storage.delete(layout.DISCARDED)
