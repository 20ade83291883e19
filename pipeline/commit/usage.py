"""Resource use of a run's actors in all of its calls, kept next to the ledger.

The record of a call holds the use of the calls before it, and its own. It is written now and then while units are
committed, and at the end. Its name holds the epoch of the lease, and the highest one counts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import layout
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, SinkError
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.storage.protocol import Storage

_EVERY_SECONDS = 30.0


@dataclass(kw_only=True)
class Usage:
    """Resource use of earlier calls, and the record of this one.

    Attributes:
        storage: the output.
        epoch, since: of this call's lease, and at the begin of the run; earlier records do not count.
        used: use of this call up to now.
    """

    storage: Storage
    epoch: int
    since: int
    used: Callable[[], ResourceSeconds]
    _saved: float = field(default_factory=time.monotonic)

    @functools.cached_property
    def before(self) -> ResourceSeconds:
        """Use of earlier calls."""
        found = _latest(self.storage, self.since)
        if found is None:
            return ResourceSeconds()
        is_own = layout.epoch_of(found[0]) == self.epoch  # of an earlier round of this call
        return _sum(found[1], *(("before",) if is_own else ("before", "own")))

    @property
    def total(self) -> ResourceSeconds:
        """Of all calls, up to now."""
        return self.before + self.used()

    def tick(self) -> None:
        """Write the record, if that was not done for a while."""
        if time.monotonic() >= self._saved + _EVERY_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the record, if this call has used anything. A store that refuses it does not end the run."""
        self._saved = time.monotonic()
        used = self.used()
        if not used.priced:
            return
        with suppress(SinkError, OSError):
            raw = {"before": asdict(self.before), "own": asdict(used)}
            self.storage.put(layout.usage(self.epoch), seal(raw))
            others = self.storage.keys(layout.USAGE)
            self.storage.delete_objects([key for key in others if layout.epoch_of(key) < self.epoch])


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
