"""Puts leases in the state that a dead or sleeping writer leaves."""

from __future__ import annotations

from pipeline import layout
from pipeline.commit.sealed import seal, unseal
from pipeline.storage.protocol import Storage


def expire_leases(storage: Storage) -> None:
    """As if every holder had renewed nothing for longer than its term."""
    for key in storage.keys(layout.LEASES):
        storage.put(key, seal({**unseal(storage.read(key)), "expires": 0.0}))
