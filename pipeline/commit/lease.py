"""One writer per output: a lease that expires, so that a killed run does not lock its output for good.

Leases are numbered by epochs; the highest counts, and an epoch is taken by a put that succeeds once. What a writer
puts bears its epoch (see :mod:`pipeline.layout`), and epochs never come again: a lease that is given back stays as a
mark. A holder that sleeps through its lease (a stopped process, a lost network) may wake up when another run has taken
over: the successor then knows its epoch, and fences it off the next publication (see :mod:`pipeline.commit.publish`)
and the ledger (see :mod:`pipeline.commit.ledger`). So it is not clocks on which exactly-once rests: they only decide
who has to wait.

A lease that cannot be read holds nobody off: its holder either ended while it wrote it, or puts it anew soon.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import layout
from pipeline.commit.process_identity import ProcessIdentity
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, LeaseError, LeaseLostError, OutputError, SinkError
from pipeline.storage.protocol import Storage

__all__ = ["Holder", "Lease", "current_holder", "hold_lease"]

TTL_SECONDS = 60.0
_SETTLE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds (or held) a lease.

    Attributes:
        epoch: of the lease.
        token: of the holder; empty where the lease cannot be read.
        process: None where the lease cannot be read.
        expires: seconds since 1970, by the holder's clock.
        released: whether it was given back.
    """

    epoch: int
    token: str = ""
    process: ProcessIdentity | None = None
    expires: float = 0.0
    released: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the lease was not given back, has not run out, and its holder is not known to be dead."""
        if self.released or self.process is None or self.expires <= time.time():
            return False
        return not self.process.has_ended()

    def describe(self) -> str:
        """For people."""
        return "nobody knows who" if self.process is None else f"process {self.process.pid} on {self.process.host}"

    def to_bytes(self) -> bytes:
        """What :meth:`parse` reads back."""
        return seal(asdict(self))

    @classmethod
    def parse(cls, key: str, data: bytes) -> Holder:
        """Inverse of :meth:`to_bytes`; of a damaged lease what its name says."""
        try:
            raw: dict[str, Any] = unseal(data)
            return cls(**{**raw, "process": ProcessIdentity(**raw["process"]), "epoch": layout.epoch_of(key)})
        except (DamagedError, TypeError, KeyError):
            return cls(epoch=layout.epoch_of(key))


class Lease:
    """A held lease; renewed in the background until released.

    Attributes:
        epoch: higher than that of every holder before.
        token: of this holder alone.
    """

    def __init__(self, storage: Storage, ttl: float | None = None) -> None:
        """Take the lease; ``ttl``: seconds for which it holds unless renewed, None is :data:`TTL_SECONDS`.

        Raises:
            LeaseError: another live run holds it.
        """
        self._storage = storage
        self._ttl = TTL_SECONDS if ttl is None else ttl
        self.token = uuid.uuid4().hex[:16]
        self._process = ProcessIdentity.own()
        self._earlier = _holders(storage)
        last = self._earlier[-1] if self._earlier else None
        if last is not None and last.is_live:
            raise LeaseError(
                f"{storage.url}: {last.describe()} is writing there (its lease ends in "
                f"{last.expires - time.time():.0f} s unless renewed). Wait for it, end it, or use another folder."
            )
        self.epoch = 1 + (last.epoch if last is not None else _last_epoch(storage))
        self._key = layout.lease(self.epoch)
        term = self._next_term()
        if not storage.put_new(self._key, term.to_bytes()):
            raise LeaseError(f"{storage.url}: another run has begun to write there just now. Wait for it, or end it.")
        self._begin(term)
        # Where a store has no conditional put, two that came at once may both be here: the later put counts.
        time.sleep(_SETTLE_SECONDS)
        self.verify()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def predecessors(self) -> tuple[int, ...]:
        """Epochs of holders that never gave their lease back: they may be dead, or asleep."""
        return tuple(holder.epoch for holder in self._earlier if not holder.released)

    def forget_predecessors(self) -> None:
        """Drop the leases before this one, once their holders are fenced off."""
        self._storage.delete_objects([layout.lease(holder.epoch) for holder in self._earlier])
        self._earlier = []

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is still ours; asks the store only once our term has run out."""
        if time.time() >= self._expires or time.monotonic() >= self._expires_monotonic:
            self.verify()

    def verify(self) -> None:
        """Raise LeaseLostError unless the store says that the lease is still ours."""
        if not self._is_ours():
            raise LeaseLostError(
                f"{self._storage.url}: another run took over this output. This one stops; what it committed stays."
            )

    def release(self) -> None:
        """Give it back, if it is still ours; where the store does not answer it runs out by itself."""
        self._stop.set()
        self._thread.join()
        with suppress(SinkError, OSError):
            if self._is_ours():
                mark = Holder(epoch=self.epoch, token=self.token, process=self._process, released=True)
                self._storage.put(self._key, mark.to_bytes())

    def _is_ours(self) -> bool:
        """Whether no later lease was taken. One of our own that was damaged is put anew by the next renewal."""
        holders = _holders(self._storage)
        if not holders or holders[-1].epoch != self.epoch:
            return False
        return holders[-1].token in (self.token, "")

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            try:
                if not self._is_ours():
                    return  # lost; check() says so once our term has run out
                term = self._next_term()
                self._storage.put(self._key, term.to_bytes())
                self._begin(term)
            except Exception:  # the store may be back for the next attempt, before our term runs out
                continue

    def _next_term(self) -> Holder:
        return Holder(epoch=self.epoch, token=self.token, process=self._process, expires=time.time() + self._ttl)

    def _begin(self, term: Holder) -> None:
        """From now on the store has this term."""
        self._expires = term.expires
        self._expires_monotonic = time.monotonic() + term.expires - time.time()


@contextmanager
def hold_lease(storage: Storage) -> Iterator[Lease]:
    """Hold the output's lease during a block.

    Raises:
        LeaseError: another live run holds it.
        LeaseLostError: another run took over during the block.
    """
    lease = Lease(storage)
    try:
        yield lease
    except (SinkError, OutputError, OSError):
        # What is missing may have been published, and removed, by a run that took over: then that is the reason.
        with suppress(SinkError, OSError):
            lease.verify()
        raise
    finally:
        lease.release()


def current_holder(storage: Storage) -> Holder | None:
    """Who is writing to an output now; None where nobody is."""
    holders = _holders(storage)
    return holders[-1] if holders and holders[-1].is_live else None


def _holders(storage: Storage) -> list[Holder]:
    """All leases that are there, oldest first."""
    found = []
    for key in storage.keys(layout.LEASES):
        if layout.epoch_of(key) < 0:
            continue  # not ours
        try:
            found.append(Holder.parse(key, read_state(storage, key)))
        except FileNotFoundError:
            continue  # dropped by a successor since it was listed
        except DamagedError:
            found.append(Holder(epoch=layout.epoch_of(key)))
    return sorted(found, key=lambda holder: holder.epoch)


def _last_epoch(storage: Storage) -> int:
    """Of an output whose leases are gone: the highest that anything there bears, as epochs must not come again."""
    begins = (layout.RUN, layout.MANIFEST, layout.LEDGER, layout.FENCES, layout.DISCARDED)
    ends = (layout.PUBLICATIONS, layout.UNITS, layout.DEAD_LETTERS, layout.PUBLISH)
    epochs = [layout.epoch_of(key) for kind in begins for key in storage.keys(kind)]
    epochs += [layout.number_of(key)[1] for kind in ends for key in storage.keys(kind)]
    return max(epochs, default=0)
