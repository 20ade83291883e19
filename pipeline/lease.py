"""One writer per output: a lease that expires, so that a killed run does not lock its output for good.

Leases are numbered; the highest number counts, and a number is taken by a put that succeeds once. A holder
that sleeps through its lease (a stopped process, a lost network) may wake up when another run has taken over:
the successor then knows its token, and fences it off the next publication (see :mod:`pipeline.publish`). So
it is not clocks on which exactly-once rests: they only decide who has to wait.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from pipeline import layout
from pipeline.errors import LeaseError, SinkError
from pipeline.storage import Storage

__all__ = ["Holder", "Lease", "current_holder", "hold_lease"]

TTL_SECONDS = 60.0
_SETTLE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds (or held) a lease. ``expires``: seconds since the epoch, by the holder's clock."""

    epoch: int
    token: str
    host: str
    pid: int
    expires: float

    @property
    def is_live(self) -> bool:
        """Whether the lease has not run out, and its holder is not known to be dead."""
        return self.expires > time.time() and not self._is_dead()

    def _is_dead(self) -> bool:
        """Whether the holder was a process of this machine that is gone."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class Lease:
    """A held lease; renewed in the background until released."""

    def __init__(self, storage: Storage, ttl: float = TTL_SECONDS) -> None:
        """Take the lease.

        Raises:
            LeaseError: another live run holds it.
        """
        self._storage = storage
        self._ttl = ttl
        self.token = uuid.uuid4().hex[:16]
        self._predecessors = _holders(storage)
        last = self._predecessors[-1] if self._predecessors else None
        if last is not None and last.is_live:
            raise LeaseError(
                f"{storage.url}: process {last.pid} on {last.host} is writing there (its lease ends in "
                f"{last.expires - time.time():.0f} s unless renewed). Wait for it, end it, or use another folder."
            )
        self._epoch = 1 if last is None else last.epoch + 1
        self._key = layout.lease(self._epoch)
        term = self._next_term()
        if not storage.put_new(self._key, _encode(term)):
            raise LeaseError(f"{storage.url}: another run has begun to write there just now. Wait for it, or end it.")
        self._begin(term)
        # Where a store has no conditional put, two that came at once may both be here: the later put counts.
        time.sleep(_SETTLE_SECONDS)
        self.verify()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Tokens of holders that never gave their lease back: they may be dead, or asleep."""
        return tuple(holder.token for holder in self._predecessors)

    def forget_predecessors(self) -> None:
        """Drop their leases, once they are fenced off."""
        for holder in self._predecessors:
            self._storage.delete(layout.lease(holder.epoch))
        self._predecessors = []

    def check(self) -> None:
        """Raise LeaseError unless the lease is still ours; asks the store only once our term has run out."""
        if time.time() >= self._expires or time.monotonic() >= self._expires_monotonic:
            self.verify()

    def verify(self) -> None:
        """Raise LeaseError unless the store says that the lease is still ours."""
        if not self._is_ours():
            raise LeaseError(f"{self._storage.url}: another run took over this output. This one stops.")

    def release(self) -> None:
        """Give it back, if it is still ours; where the store does not answer it runs out by itself."""
        self._stop.set()
        self._thread.join()
        with suppress(SinkError, OSError):
            if self._is_ours():
                self._storage.delete(self._key)

    def _is_ours(self) -> bool:
        holders = _holders(self._storage)
        return bool(holders) and holders[-1].token == self.token

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            try:
                if not self._is_ours():
                    return  # lost; check() says so once our term has run out
                term = self._next_term()
                self._storage.put(self._key, _encode(term))
                self._begin(term)
            except Exception:  # the store may be back for the next attempt, before our term runs out
                continue

    def _next_term(self) -> Holder:
        expires = time.time() + self._ttl
        return Holder(epoch=self._epoch, token=self.token, host=socket.gethostname(), pid=os.getpid(), expires=expires)

    def _begin(self, term: Holder) -> None:
        """From now on the store has this term."""
        self._expires = term.expires
        self._expires_monotonic = time.monotonic() + term.expires - time.time()


@contextmanager
def hold_lease(storage: Storage) -> Iterator[Lease]:
    """Hold the output's lease during a block.

    Raises:
        LeaseError: another live run holds it, or took over during the block.
    """
    lease = Lease(storage)
    try:
        yield lease
    except SinkError:
        # What is missing may have been published, and removed, by a run that took over: then that is the reason.
        with suppress(SinkError, OSError):
            lease.verify()
        raise
    finally:
        lease.release()


def _encode(term: Holder) -> bytes:
    return json.dumps(asdict(term)).encode()


def current_holder(storage: Storage) -> Holder | None:
    """Who is writing to an output now; None where nobody is."""
    holders = _holders(storage)
    return holders[-1] if holders and holders[-1].is_live else None


def _holders(storage: Storage) -> list[Holder]:
    """All leases that were not given back, oldest first."""
    found = []
    for key in storage.keys(layout.LEASES):
        try:
            found.append(Holder(**json.loads(storage.read(key))))
        except FileNotFoundError:
            continue  # given back since it was listed
    return found
