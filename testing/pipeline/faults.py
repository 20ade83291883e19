"""A storage that injects faults at a chosen operation or at random, in every process that uses it."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from pipeline import layout
from pipeline.storage.protocol import Storage

BOUNDARIES = {
    layout.LEASES: "lease",
    layout.RUN: "state",
    layout.STAGED: "stage",
    layout.LEDGER: "ledger",
    layout.SNAPSHOTS: "snapshot",
    layout.FENCES: "fence",
    layout.PUBLISH: "part",
    layout.DEAD_LETTERS: "dead letters",
    layout.PUBLICATIONS: "publication record",
    layout.UNITS: "list of units",
    layout.INPUTS: "list of input files",
    layout.MANIFEST: "manifest",
    layout.SCRATCH: "scratch",
    layout.INPUT: "input",
    layout.CRASHES: "crash note",
}
"""Key prefix -> the kind of object written or removed there."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A point of a run: just before or just after an operation takes effect."""

    operation: str
    key: str
    after: bool


def boundary(moment: Moment) -> str:
    """The moment's operation in words: verb and object."""
    if moment.operation in ("promote", "sweep"):
        return moment.operation
    of = next((name for prefix, name in BOUNDARIES.items() if moment.key.startswith(prefix)), "published data")
    return f"remove {of}" if moment.operation == "delete" else of


def crash_points(moments: Sequence[Moment], *, every: bool = True) -> list[int]:
    """Numbers of moments whose crash leaves a state that no later crash leaves.

    Where not ``every`` one is wanted, the first and the last of each kind: of operation and object, before and after.

    Just after an operation is, to the next run, just before the following one: nothing is written in between. So it is
    left out, unless operations of several threads overlap there, or a stream was written to since.
    """
    following = [*moments[1:], None]
    found = [
        number
        for number, (moment, then) in enumerate(zip(moments, following, strict=True))
        if not moment.after or then is None or then.after or then.operation == "close"
    ]
    if every:
        return found
    kinds = [(boundary(moments[number]), moments[number].operation, moments[number].after) for number in found]
    ends = dict(zip(reversed(kinds), reversed(found), strict=True)), dict(zip(kinds, found, strict=True))
    return sorted({number for of_kind in ends for number in of_kind.values()})


def last_of_each_boundary(moments: Sequence[Moment]) -> list[int]:
    """The last of :func:`crash_points` at each boundary, for operations whose writing another sweep covers."""
    return sorted({boundary(moments[at]): at for at in crash_points(moments)}.values())


class Killed(BaseException):
    """The process is dead: nothing after this may touch the storage."""


class Recorder:
    """Lets all operations pass and writes them down."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def __call__(self, moment: Moment) -> None:
        self.moments.append(moment)


class CrashAt:
    """In this process: from moment number ``at`` (from 0) on everything that touches the storage raises Killed."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._seen = 0

    @property
    def dead(self) -> bool:
        return self._seen > self._at

    def __call__(self, moment: Moment) -> None:
        self._seen += not self.dead
        if self.dead:
            raise Killed


@dataclass(kw_only=True)
class KillAt:
    """SIGKILL to the own process at occurrence number ``at`` (from 0) of a boundary."""

    boundary: str
    after: bool
    at: int = 0
    seen: int = 0

    def __call__(self, moment: Moment) -> None:
        if moment.after == self.after and boundary(moment) == self.boundary:
            self.seen += 1
            if self.seen > self.at:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(kw_only=True)
class FailAtRandom:
    """OSError with a probability; whether the operation had taken effect is as random. Each process draws its own."""

    probability: float

    def __call__(self, moment: Moment) -> None:
        # Many objects are removed by one call, which is tried again as a whole: each of them may fail but rarely.
        rarity = 200 if moment.operation == "delete" else 2
        if random.random() < self.probability / rarity:
            raise OSError(errno.EIO, f"{moment.operation} failed on purpose", moment.key)


class FaultyStorage:
    """Passes everything on to ``inner``; before and after each operation that changes something, asks ``inject``.

    A stream counts when it is opened and when its block has ended: a fault before the end leaves nothing visible.
    Removals of several objects count one by one: a real one may end between any two. Picklable where ``inject`` is.
    """

    def __init__(self, inner: Storage, inject: Callable[[Moment], None]) -> None:
        self._inner = inner
        self._inject = inject

    @property
    def url(self) -> str:
        return self._inner.url

    @contextmanager
    def _operation(self, operation: str, key: str) -> Iterator[None]:
        self._inject(Moment(operation=operation, key=key, after=False))
        yield
        self._inject(Moment(operation=operation, key=key, after=True))

    def put(self, key: str, data: bytes) -> None:
        with self._operation("put", key):
            self._inner.put(key, data)

    def put_new(self, key: str, data: bytes) -> bool:
        with self._operation("put_new", key):
            return self._inner.put_new(key, data)

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        return self._create(key)

    @contextmanager
    def _create(self, key: str) -> Iterator[BinaryIO]:
        with self._operation("create", key), self._inner.create(key) as file:
            yield file
            self._inject(Moment(operation="close", key=key, after=False))

    def read(self, key: str) -> bytes:
        return self._inner.read(key)

    def open(self, key: str) -> BinaryIO:
        return self._inner.open(key)

    def exists(self, key: str) -> bool:
        return self._inner.exists(key)

    def keys(self, prefix: str) -> list[str]:
        return self._inner.keys(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._inner.sizes(prefix)

    def folders(self) -> list[str]:
        return self._inner.folders()

    def walk(self, prefix: str) -> Iterator[list[str]]:
        return self._inner.walk(prefix)

    def delete(self, key: str) -> None:
        self.delete_objects(below := [k for k in self._inner.keys(key) if k != key])
        if not below or self._inner.exists(key):
            with self._operation("delete", key):
                self._inner.delete(key)

    def delete_objects(self, keys: Sequence[str]) -> None:
        for key in keys:
            with self._operation("delete", key):
                self._inner.delete_objects([key])

    def promote(self, source: str, target: str) -> None:
        with self._operation("promote", target):
            self._inner.promote(source, target)

    def sweep(self, before: float) -> None:
        with self._operation("sweep", layout.SCRATCH):
            self._inner.sweep(before)
