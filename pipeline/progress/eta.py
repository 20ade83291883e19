"""How fast a run goes, and when it will end. Plain logic: the caller tells it the time.

The remaining time is the remaining units over the units per actor-second over the ready actors, so it holds while
actors come and go. Of a chain, the units of all stages count the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from pipeline.progress.snapshot import ChainStage, Progress, Rates
from pipeline.types import CommitRecord, Totals

_LEAST_UNITS = 2
"""With fewer units there is no estimate."""
_RECENT_SECONDS, _RECENT_UNITS = 20.0, 16
"""Rates are those of this time, or of this number of units if they took longer."""


@dataclass(kw_only=True)
class _Sums:
    """Time with a ready actor, and sums of the committed units. ``exposure``: actor-seconds."""

    seconds: float = 0.0
    exposure: float = 0.0
    units: int = 0
    rows: int = 0
    tokens: int = 0

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(**{name: value - getattr(other, name) for name, value in vars(self).items()})


class RateTracker:
    """Counts units as they are committed. Time without a ready actor does not count."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self._last = deque([self._sums])
        self._now: float | None = None

    def advance(self, now: float, actors: int) -> None:
        """Go on to ``now`` (seconds of any clock); since the last call so many ``actors`` were ready."""
        before, self._now = self._now, now
        if before is None or actors <= 0:
            return
        own, spent = self._sums, max(0.0, now - before)
        self._sums = replace(own, seconds=own.seconds + spent, exposure=own.exposure + spent * actors)

    def add(self, *, rows: int, tokens: int) -> None:
        """Count a unit that was committed at the time of the last :meth:`advance`."""
        own = self._sums
        self._sums = replace(own, units=own.units + 1, rows=own.rows + rows, tokens=own.tokens + tokens)
        last = self._last
        if len(last) > 1 and last[-1].seconds == own.seconds:
            last.pop()  # units of one moment need one entry, however many they are
        last.append(self._sums)
        while (new := self._sums - last[1]).units >= _RECENT_UNITS and new.seconds >= _RECENT_SECONDS:
            last.popleft()

    def recent(self) -> Rates:
        """Rates of the last commits."""
        own = self._sums - self._last[0]
        if not own.units or not own.seconds:
            return Rates()
        return Rates(rows_per_second=own.rows / own.seconds, tokens_per_second=own.tokens / own.seconds)

    def eta(self, units: int, actors: int) -> float | None:
        """Seconds until ``units`` more are committed by so many ready actors; None if none is, or before enough are."""
        own = self._sums - self._last[0]
        if units <= 0 or actors <= 0 or own.units < _LEAST_UNITS or own.exposure <= 0:
            return None
        return units * own.exposure / own.units / actors


class Counts:
    """Counts the committed units of one output."""

    def __init__(self) -> None:
        self._past = self._own = Progress()  # of the runs before, and of this one; its seconds but for the last pass
        self._seconds = 0.0
        self._planned, self._estimated = 0, False

    def begin(self) -> None:
        """A further run begins, which is shown together with those before."""
        self._past, self._own, self._seconds = self.whole, Progress(), 0.0

    def plan(self, total_rows: int, done: Totals, units: int, *, estimated: bool = False) -> None:
        """Generating begins, or begins again; see :meth:`pipeline.progress.monitor.Monitor.plan`."""
        own = self._own
        self._planned, self._estimated = done.units + units, estimated
        self._own = replace(own, total_rows=total_rows, done=done, seconds=own.seconds + self._seconds)
        self._seconds = 0.0

    def add(self, record: CommitRecord, new: CommitRecord) -> None:
        """Count a unit; ``new``: without rows done by an earlier attempt."""
        own = self._own
        self._own = replace(own, done=own.done.plus(record), session=own.session.plus(new))
        self._seconds = max(self._seconds, record.engine_seconds)

    @property
    def committed(self) -> Progress:
        """The present run, without those before."""
        own = replace(self._own, seconds=self._own.seconds + self._seconds)
        return replace(own, total_rows=self._expected_rows(own)) if self._estimated else own

    @property
    def whole(self) -> Progress:
        """The runs before and this one."""
        past, own = self._past, self.committed
        return replace(past.merged_with(own), seconds=past.seconds + own.seconds)

    def as_stage(self, name: str) -> ChainStage:
        """As a stage of a chain."""
        own = self.whole
        return ChainStage(
            name=name, total_rows=own.total_rows, done=own.done, session=own.session, seconds=own.seconds,
            units=self._planned, estimated=self._estimated and own.done.units < self._planned,
        )  # fmt: skip

    @property
    def units_left(self) -> int:
        """Units that are to be committed."""
        return self._planned - self._own.done.units

    def _expected_rows(self, own: Progress) -> int:
        """Rows in all, if the units that are left have as many as those that are done; ``own`` has the most."""
        done = own.done
        if not done.units:
            return own.total_rows
        return min(own.total_rows, done.rows + round(done.rows / done.units * (self._planned - done.units)))
