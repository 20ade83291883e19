"""The time line of a run: a bounded number of points that thins itself, so that long runs keep their shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.progress.snapshot import Snapshot

__all__ = ["Moment", "TimeLine"]

_MOST = 400
_SECONDS = 0.5
"""Between two points, at first."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A run at one moment. Counts have grown since the run began, so what lies between two moments is a difference.

    Attributes:
        at: seconds since the run began.
        rows, failed, tokens, decode_forwards: committed by this run.
        ready, wanted: actors that take units, and that there are to be.
        running, slots, queue: sequences in the engines, room for them, and requests that wait.
        kv_used, kv_pages: pages of the KV pools.
        engine_tokens, engine_forwards, engine_rows, masks: what the engines counted: tokens, decode forwards of each
            sequence, token rows and masks. Engines report every second or two, so tokens are at least those committed.
        paid_seconds: of accelerators, or CPUs.
    """

    at: float
    rows: int = 0
    failed: int = 0
    tokens: int = 0
    decode_forwards: int = 0
    ready: int = 0
    wanted: int = 0
    running: int = 0
    slots: int = 0
    queue: int = 0
    kv_used: int = 0
    kv_pages: int = 0
    engine_tokens: int = 0
    engine_forwards: int = 0
    engine_rows: int = 0
    masks: int = 0
    paid_seconds: float = 0.0

    @classmethod
    def of(cls, snapshot: Snapshot) -> Moment:
        """What a time line keeps of a snapshot."""
        session, load = snapshot.session, snapshot.load
        counters = {} if load is None else load.counters
        return cls(
            at=snapshot.at,
            rows=session.rows,
            failed=session.failed_rows,
            tokens=session.completion_tokens,
            decode_forwards=session.decode_forwards,
            ready=snapshot.actors.ready,
            wanted=snapshot.actors.wanted,
            running=0 if load is None else load.running,
            slots=0 if load is None else load.slots,
            queue=0 if load is None else load.queue_depth,
            kv_used=0 if load is None else load.kv_pages_used,
            kv_pages=0 if load is None else load.kv_pages,
            engine_tokens=max(counters["tokens"], session.completion_tokens) if "tokens" in counters else 0,
            engine_forwards=counters.get("decode_forwards", 0),
            engine_rows=counters.get("decode_rows", 0),
            masks=counters.get("masks", 0),
            paid_seconds=snapshot.used.priced,
        )


_NAMES = tuple(field.name for field in dataclasses.fields(Moment))


class TimeLine:
    """Keeps moments, evenly spread over the run: when there are too many, every second one goes.

    An observer of a run (:class:`pipeline.progress.observers.Observer`). One thread at a time calls it.

    Args:
        keep: called now and then with the time line so far, and at its end.
        before: moments to go on from.
        most: moments at most; even.
        every: seconds between two calls of ``keep``.
    """

    def __init__(
        self,
        keep: Callable[[TimeLine, Snapshot], None] | None = None,
        before: Iterable[Moment] = (),
        most: int = _MOST,
        every: float = 60.0,
    ) -> None:
        self.moments: list[Moment] = list(before)
        self._keep = keep
        self._most = most
        self._every = every
        self._apart = _SECONDS
        self._kept = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Take the moment, if the last one is old enough."""
        if not self.moments or snapshot.at - self.moments[-1].at >= self._apart:
            self.add(Moment.of(snapshot))
        if self._keep is not None and snapshot.at - self._kept >= self._every:
            self._kept = snapshot.at
            self._keep(self, snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """Take the last moment, in any case."""
        self.add(Moment.of(snapshot))
        if self._keep is not None:
            self._keep(self, snapshot)

    def add(self, moment: Moment) -> None:
        """Append a moment; thin the line if it has become long."""
        self.moments.append(moment)
        if len(self.moments) >= self._most:
            last = self.moments[-1]
            self.moments = self.moments[::2]
            if self.moments[-1] is not last:
                self.moments.append(last)
            self._apart *= 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values: a list for each number of the moments."""
        return columns_of(self.moments)


def columns_of(moments: Sequence[Moment]) -> dict[str, Any]:
    """Moments as one list for each of their numbers."""
    rows = [asdict(moment) for moment in moments]
    return {name: [round(row[name], 3) for row in rows] for name in _NAMES}


def moments_of(raw: Mapping[str, Sequence[Any]]) -> tuple[Moment, ...]:
    """Inverse of :func:`columns_of`; numbers that are missing are 0."""
    return tuple(
        Moment(**{name: raw[name][i] for name in _NAMES if name in raw}) for i in range(len(raw.get("at", ())))
    )
