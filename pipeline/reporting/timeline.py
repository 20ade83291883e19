"""The time line of a run: a bounded number of points that thins itself, so that long runs keep their shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.progress.snapshot import Snapshot

_MOST = 400
_SECONDS = 0.5
"""Between two points, at first."""


class Moment(NamedTuple):
    """Tokens that were generated in the first ``at`` seconds of a run, or committed where engines report none."""

    at: float
    tokens: int


class TimeLine:
    """Keeps moments, evenly spread over the run: when there are too many, every second one goes.

    An observer of a run (:class:`pipeline.progress.views.Observer`). One thread at a time calls it.

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
            self._add(snapshot)
        if self._keep is not None and snapshot.at - self._kept >= self._every:
            self._kept = snapshot.at
            self._keep(self, snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """Take the last moment, in any case."""
        self._add(snapshot)
        if self._keep is not None:
            self._keep(self, snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        """Append a moment; thin the line if it has become long."""
        # Engines report every second or two, so their tokens are at least those committed.
        generated = 0 if snapshot.load is None else int(snapshot.load.counters.get("tokens", 0))
        last = Moment(snapshot.at, max(generated, snapshot.session.completion_tokens))
        self.moments.append(last)
        if len(self.moments) >= self._most:
            self.moments = [*self.moments[:-1:2], last]
            self._apart *= 2


def columns_of(moments: Sequence[Moment]) -> dict[str, Any]:
    """Moments as a list of times and a list of tokens."""
    return {"at": [round(moment.at, 3) for moment in moments], "tokens": [moment.tokens for moment in moments]}


def moments_of(raw: Mapping[str, Sequence[Any]]) -> tuple[Moment, ...]:
    """Inverse of :func:`columns_of`. Earlier versions kept the engines' counts separately, and more."""
    generated = raw.get("engine_tokens") or [0] * len(raw["at"])
    return tuple(Moment(at, max(both)) for at, *both in zip(raw["at"], raw["tokens"], generated, strict=True))
