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
    """A run at one moment, counted since the run began.

    Attributes:
        at: seconds.
        rows, tokens: committed by this run.
        engine_tokens: tokens that the engines generated. They report every second or two, so at least those committed.
    """

    at: float
    rows: int = 0
    tokens: int = 0
    engine_tokens: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot) -> Moment:
        """Take a snapshot's counts."""
        session, load = snapshot.session, snapshot.load
        generated = None if load is None else load.counters.get("tokens")
        return cls(
            at=snapshot.at,
            rows=session.rows,
            tokens=session.completion_tokens,
            engine_tokens=0 if generated is None else max(generated, session.completion_tokens),
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


def columns_of(moments: Sequence[Moment]) -> dict[str, Any]:
    """Moments as one list for each of their numbers."""
    rows = [asdict(moment) for moment in moments]
    return {name: [round(row[name], 3) for row in rows] for name in _NAMES}


def moments_of(raw: Mapping[str, Sequence[Any]]) -> tuple[Moment, ...]:
    """Inverse of :func:`columns_of`; numbers that are missing are 0."""
    return tuple(
        Moment(**{name: raw[name][i] for name in _NAMES if name in raw}) for i in range(len(raw.get("at", ())))
    )
