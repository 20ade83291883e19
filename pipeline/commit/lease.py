"""The lease: at most one writer per output. It expires, so a killed run does not lock its output for good.

Leases are numbered by epochs, which never come twice; the highest one counts, and each is taken by a put that succeeds
only once. A holder that sleeps through its lease may wake up after another run has taken over, which has put fences
against its publications and commits. So exactly-once does not depend on clocks; they only decide how long a successor
waits. A lease that cannot be read does not block a new run.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, LeaseError, LeaseLostError, OutputError, SinkError
from pipeline.storage.protocol import Storage

_PROC = Path("/proc")
_ENDED = "ZX"
"""States (in ``/proc/PID/stat``) of processes that have ended but are not reaped yet."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process on some machine.

    Attributes:
        host: host name, for messages.
        boot: id of the machine's boot; empty if unknown.
        namespace: its PID namespace; empty if unknown.
        pid: process id in that namespace.
        started: start time in clock ticks after the boot; -1 if unknown.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """The identity of this process."""
        pid = os.getpid()
        state = _state(pid)
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            namespace=_namespace(),
            pid=pid,
            started=-1 if state is None else state[1],
        )

    def has_ended(self) -> bool:
        """Whether the process is known to have ended; False if this process cannot tell."""
        known = self.boot and self.namespace and self.started >= 0
        if not known or (self.boot, self.namespace) != (_boot(), _namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it belongs to another user: says nothing about when it started
        state = _state(self.pid)
        return state is not None and (state[1] != self.started or state[0] in _ENDED)


@functools.cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, int] | None:
    """``(state, start time in clock ticks after the boot)`` of a process; None if that cannot be read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


TTL_SECONDS = 60.0
_SETTLE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds (or held) a lease.

    Attributes:
        epoch: epoch of the lease.
        token: unique to the holder; empty if the lease cannot be read.
        process: the holder's process; None if the lease cannot be read.
        expires: seconds since 1970, by the holder's clock.
        released: whether the holder gave the lease back.
    """

    epoch: int
    token: str = ""
    process: ProcessIdentity | None = None
    expires: float = 0.0
    released: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the lease is neither released nor expired, and its holder is not known to be dead."""
        if self.released or self.process is None or self.expires <= time.time():
            return False
        return not self.process.has_ended()

    def describe(self) -> str:
        """For people."""
        return "nobody knows who" if self.process is None else f"process {self.process.pid} on {self.process.host}"

    def to_bytes(self) -> bytes:
        """Bytes that :meth:`parse` reads back."""
        return seal(asdict(self))

    @classmethod
    def parse(cls, key: str, data: bytes) -> Holder:
        """Inverse of :meth:`to_bytes`; for a damaged lease only the epoch in its key is known."""
        try:
            raw: dict[str, Any] = unseal(data)
            return cls(**{**raw, "process": ProcessIdentity(**raw["process"]), "epoch": layout.epoch_of(key)})
        except (DamagedError, TypeError, KeyError):
            return cls(epoch=layout.epoch_of(key))


class Lease:
    """A held lease; renewed in the background until released.

    Attributes:
        epoch: higher than that of every earlier holder.
        token: unique to this holder.
        taken: when it was taken, seconds since 1970 by this machine's clock.
    """

    def __init__(self, storage: Storage, ttl: float | None = None) -> None:
        """Take the lease. ``ttl``: seconds until it expires unless renewed; None is :data:`TTL_SECONDS`.

        Raises:
            LeaseError: another live run holds it.
        """
        self._storage = storage
        self._ttl = TTL_SECONDS if ttl is None else ttl
        self.taken = time.time()
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
        # Without a conditional put in the store, two processes may get here at once: the later put counts.
        time.sleep(_SETTLE_SECONDS)
        self.verify()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def predecessors(self) -> tuple[int, ...]:
        """Epochs of earlier holders that did not release their lease: they may be dead or asleep."""
        return tuple(holder.epoch for holder in self._earlier if not holder.released)

    def forget_predecessors(self) -> None:
        """Drop the leases before this one; to be called once fences stop their holders."""
        self._storage.delete_objects([layout.lease(holder.epoch) for holder in self._earlier])
        self._earlier = []

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is still ours; asks the store only after our term has expired."""
        if time.time() >= self._expires or time.monotonic() >= self._expires_monotonic:
            self.verify()

    def verify(self) -> None:
        """Raise LeaseLostError unless the store says that the lease is still ours."""
        if not self._is_ours():
            raise LeaseLostError(
                f"{self._storage.url}: another run took over this output. This one stops; its commits stay."
            )

    def release(self) -> None:
        """Give the lease back if it is still ours; if the store does not answer, the lease expires by itself."""
        self._stop.set()
        self._thread.join()
        with suppress(SinkError, OSError):
            if self._is_ours():
                mark = Holder(epoch=self.epoch, token=self.token, process=self._process, released=True)
                self._storage.put(self._key, mark.to_bytes())

    def _is_ours(self) -> bool:
        """Whether no later lease was taken. If our own lease is damaged, the next renewal writes it again."""
        holders = _holders(self._storage)
        if not holders or holders[-1].epoch != self.epoch:
            return False
        return holders[-1].token in (self.token, "")

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            try:
                if not self._is_ours():
                    return  # lost; check() raises once our term has expired
                term = self._next_term()
                self._storage.put(self._key, term.to_bytes())
                self._begin(term)
            except Exception:  # the store may be back for the next renewal, before our term expires
                continue

    def _next_term(self) -> Holder:
        return Holder(epoch=self.epoch, token=self.token, process=self._process, expires=time.time() + self._ttl)

    def _begin(self, term: Holder) -> None:
        """Remember the term that the store now holds."""
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
        # Files may be missing because a run that took over published and removed them: then report that instead.
        with suppress(SinkError, OSError):
            lease.verify()
        raise
    finally:
        lease.release()


def current_holder(storage: Storage) -> Holder | None:
    """The process that holds the lease of an output now; None if there is none."""
    holders = _holders(storage)
    return holders[-1] if holders and holders[-1].is_live else None


def _holders(storage: Storage) -> list[Holder]:
    """All leases in the output, oldest first."""
    found = []
    for key in storage.keys(layout.LEASES):
        if layout.epoch_of(key) < 0:
            continue  # not ours
        try:
            found.append(Holder.parse(key, read_state(storage, key)))
        except FileNotFoundError:
            continue  # a successor removed it after the listing
        except DamagedError:
            found.append(Holder(epoch=layout.epoch_of(key)))
    return sorted(found, key=lambda holder: holder.epoch)


def _last_epoch(storage: Storage) -> int:
    """The highest epoch in the names of an output whose leases are gone: epochs must not be used twice."""
    begins = (layout.RUN, layout.MANIFEST, layout.LEDGER, layout.SNAPSHOTS, layout.FENCES, layout.DISCARDED)
    ends = (layout.PUBLICATIONS, layout.UNITS, layout.DEAD_LETTERS, layout.PUBLISH)
    epochs = [layout.epoch_of(key) for kind in begins for key in storage.keys(kind)]
    epochs += [layout.number_of(key)[1] for kind in ends for key in storage.keys(kind)]
    return max(epochs, default=0)
