"""Discarding an output, so that a kill in the middle leaves neither the old run nor half of it.

A marker is put first: from then on nothing of the old run counts, and whoever begins next finishes the removal.
The published folders go before the records that name them, and the marker goes last.
"""

from __future__ import annotations

from pipeline import layout
from pipeline.publish import decided
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
    for publication in decided(storage):
        storage.delete(publication.name)
    kept = (f"{layout.LEASES}/", layout.DISCARDED)
    storage.delete_objects([key for key in storage.keys(layout.STATE) if not key.startswith(kept)])
    storage.delete(layout.DISCARDED)
