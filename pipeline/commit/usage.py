"""Resource use of a run's actors in all of its calls, kept next to the ledger.

The record of a call holds the use of the calls before it, and its own. It is written now and then while units are
committed, and at the end. Its name holds the epoch of the lease, and the highest one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pipeline import layout
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, SinkError
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.storage.protocol import Storage

_EVERY_SECONDS = 30.0


class Usage:
    """Resource use of earlier calls, and the record of this one.

    Attributes:
        before: use of earlier calls.

    ``since``: epoch at the begin of the run; earlier records do not count. ``used``: use of this call up to now.
    """

    def __init__(self, storage: Storage, *, epoch: int, since: int, used: Callable[[], ResourceSeconds]) -> None:
        self._storage, self._epoch, self._used = storage, epoch, used
        self._next = time.monotonic() + _EVERY_SECONDS
        found = _latest(storage, since)
        own = found is not None and layout.epoch_of(found[0]) == epoch  # of an earlier round of this call
        raw: Mapping[str, Any] = {} if found is None else found[1]
        self.before = _sum(raw, *(("before",) if own else ("before", "own")))

    @property
    def total(self) -> ResourceSeconds:
        """Of all calls, up to now."""
        return self.before + self._used()

    def tick(self) -> None:
        """Write the record, if that was not done for a while."""
        if time.monotonic() >= self._next:
            self.save()

    def save(self) -> None:
        """Write the record, if this call has used anything. A store that refuses it does not end the run."""
        self._next = time.monotonic() + _EVERY_SECONDS
        used = self._used()
        if not used.priced:
            return
        raw = {"before": asdict(self.before), "own": asdict(used)}
        with suppress(SinkError, OSError):
            self._storage.put(layout.usage(self._epoch), seal(raw))
            others = self._storage.keys(layout.USAGE)
            self._storage.delete_objects([key for key in others if layout.epoch_of(key) < self._epoch])


def read_usage(storage: Storage, since: int = 0) -> ResourceSeconds:
    """Resource use of the actors of all calls, as far as recorded."""
    found = _latest(storage, since)
    return ResourceSeconds() if found is None else _sum(found[1], "before", "own")


def _latest(storage: Storage, since: int) -> tuple[str, Mapping[str, Any]] | None:
    """The record that counts, with its key; None if there is none, or it is damaged."""
    keys = [key for key in storage.keys(layout.USAGE) if layout.epoch_of(key) >= since]
    with suppress(ValueError, FileNotFoundError, DamagedError):
        key = max(keys, key=layout.epoch_of)
        return key, unseal(read_state(storage, key))
    return None


def _sum(raw: Mapping[str, Any], *names: str) -> ResourceSeconds:
    return sum((ResourceSeconds(**raw[name]) for name in names if name in raw), start=ResourceSeconds())
