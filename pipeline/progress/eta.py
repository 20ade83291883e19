"""How fast a run goes, and when it will end. Plain logic: the caller tells it the time.

Committed units are counted in buckets of time, a bounded number: when there are too many, neighbours are merged. A
bucket knows its actor-seconds, so a run whose actors come and go is judged by the rate of one actor.

The remaining time is the remaining work, less the part of it that is done in units not committed yet, over work per
actor-second over the actors there are. Work is rows; of a chain, whose stages have rows of unlike cost, it is token
rows. The bounds follow from the number of units that the rate is known from, and of those that are still to come.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace

from pipeline.progress.snapshot import ChainStage, Eta, Progress, Rates
from pipeline.types import CommitRecord, Totals

_BUCKETS = 64
"""Buckets that are kept at most; an even number."""
_FIRST_SECONDS = 0.5
"""Length of a bucket at the beginning; it doubles as the run goes on."""
_WINDOW, _WINDOW_UNITS = 0.4, 32
"""The rate is that of this share of the run's last time, and longer until it has so many units."""
_SPREAD = 1.1
"""80% of a normal distribution lie within 1.28 standard deviations; units come more evenly than a Poisson process."""
_TAIL, _TAIL_HIGH = 0.25, 0.5
"""This part of a unit's time in an actor is added to the remaining time and its upper bound."""
_LEAST_UNITS = 2
"""With fewer units there is no estimate."""
_RECENT_SECONDS, _RECENT_UNITS = 20.0, 8
"""Recent rates reach back so far, and further until there are so many units."""


@dataclass(kw_only=True)
class _Bucket:
    seconds: float = 0.0
    exposure: float = 0.0
    """Actor-seconds."""
    units: int = 0
    rows: int = 0
    tokens: int = 0
    forwards: int = 0
    work: float = 0.0

    def __add__(self, other: _Bucket) -> _Bucket:
        return _Bucket(**{own.name: getattr(self, own.name) + getattr(other, own.name) for own in fields(self)})


class RateTracker:
    """Counts units as they are committed. Time without a ready actor does not count."""

    def __init__(self) -> None:
        self._buckets = [_Bucket()]
        self._length = _FIRST_SECONDS
        self._now: float | None = None

    def advance(self, now: float, actors: int) -> None:
        """Go on to ``now`` (seconds of any clock); since the last call so many ``actors`` were ready."""
        before, self._now = self._now, now
        if before is None or actors <= 0:
            return
        left = max(0.0, now - before)
        while left > 0:
            if self._buckets[-1].seconds >= self._length:
                self._buckets.append(_Bucket())
                if len(self._buckets) > _BUCKETS:
                    pairs = itertools.zip_longest(self._buckets[::2], self._buckets[1::2], fillvalue=_Bucket())
                    self._buckets = [one + other for one, other in pairs]
                    self._length *= 2
            last = self._buckets[-1]
            step = min(left, max(self._length - last.seconds, 1e-6))
            last.seconds += step
            last.exposure += step * actors
            left -= step

    def add(self, *, rows: int, tokens: int, forwards: int, work: float | None = None) -> None:
        """Count a unit that was committed at the time of the last :meth:`advance`. ``work``: None for its rows."""
        last = self._buckets[-1]
        last.units += 1
        last.rows += rows
        last.tokens += tokens
        last.forwards += forwards
        last.work += rows if work is None else work

    @property
    def seconds(self) -> float:
        """Time with a ready actor."""
        return math.fsum(bucket.seconds for bucket in self._buckets)

    def recent(self) -> Rates:
        """Rates of the last commits."""
        own = self._last(_RECENT_SECONDS, _RECENT_UNITS)
        return Rates(seconds=own.seconds if own.units else 0.0, rows=own.rows, tokens=own.tokens,
                     decode_forwards=own.forwards)  # fmt: skip

    def eta(self, work: float, actors: int, running: int = 0, ahead: float | None = None) -> Eta | None:
        """When all work will be committed; None if there is no estimate.

        Args:
            work: that is left, in the measure of :meth:`add`.
            actors: that are ready.
            running: units that they hold.
            ahead: work that is done in these units already; None if it is not known.
        """
        whole, own = self._last(math.inf, 0), self._last(_WINDOW * self.seconds, _WINDOW_UNITS)
        if work <= 0 or actors <= 0 or whole.units < _LEAST_UNITS or own.work <= 0 or own.exposure <= 0:
            return None
        each = whole.work / whole.units
        coming = max(1.0, work / each)
        left, done = float(work), own.work
        if ahead is not None:
            # Once a run is under way, units are half done on average, and commits alone make up for that. At the
            # beginning commits count too little, at the end too much.
            done += ahead if own.units == whole.units else 0.0
            left = max(left / 2, left - ahead + min(running, coming) * each / 2)
        seconds = left * own.exposure / done / actors
        spread = math.exp(_SPREAD * math.sqrt(1 / own.units + 1 / coming))
        # Little's law: how long a unit is held. At the end some actors have no unit left while others finish theirs.
        held = min(running, coming) * seconds / coming
        return Eta(seconds=seconds + _TAIL * held, low=seconds / spread, high=seconds * spread + _TAIL_HIGH * held)

    def _last(self, seconds: float, units: int) -> _Bucket:
        """The sum of the last buckets, back to the first that completes so many seconds and units."""
        total = _Bucket()
        for bucket in reversed(self._buckets):
            total += bucket
            if total.seconds >= seconds and total.units >= units:
                break
        return total


def work_of(totals: Totals | CommitRecord) -> int:
    """Token rows that were forwarded: rows of different stages are compared by them."""
    return totals.prompt_tokens + totals.rows_forwarded


class Counts:
    """Counts the committed units of one output."""

    def __init__(self) -> None:
        self._past = self._own = Progress()  # of the runs before, and of this one; its seconds but for the last pass
        self._units, self._seconds = 0, 0.0
        self._planned, self._estimated = 0, False

    def begin(self) -> None:
        """A further run begins, which is shown together with those before."""
        self._past, self._units = self.whole, 0
        self._own, self._seconds = Progress(), 0.0

    def plan(self, total_rows: int, done: Totals, units: int, *, estimated: bool = False) -> None:
        """Generating begins, or begins again; see :meth:`pipeline.progress.monitor.Monitor.plan`."""
        own = self._own
        self._units = own.session.units + units
        self._planned, self._estimated = done.units + units, estimated
        self._own = replace(own, total_rows=total_rows, done=done, seconds=own.seconds + self._seconds)
        self._seconds = 0.0

    def add(self, record: CommitRecord, new: CommitRecord) -> None:
        """Count a unit; ``new``: without rows done by an earlier attempt."""
        own = self._own
        self._own = replace(own, done=own.done.plus(record), session=own.session.plus(new))
        self._seconds = max(self._seconds, record.engine_seconds)

    @property
    def units(self) -> int:
        """Units that this session has or had to do."""
        return self._past.session.units + self._units

    @property
    def committed(self) -> Progress:
        """The present run, without those before."""
        own = replace(self._own, seconds=self._own.seconds + self._seconds)
        return replace(own, total_rows=self._expected_rows(own)) if self._estimated else own

    @property
    def whole(self) -> Progress:
        """The runs before and this one."""
        past, own = self._past, self.committed
        return Progress(
            total_rows=past.total_rows + own.total_rows, done=past.done.merged_with(own.done),
            session=past.session.merged_with(own.session), seconds=past.seconds + own.seconds,
        )  # fmt: skip

    def as_stage(self, name: str) -> ChainStage:
        """As a stage of a chain."""
        own = self.whole
        return ChainStage(
            name=name, total_rows=own.total_rows, done=own.done, session=own.session, seconds=own.seconds,
            units=self._planned, estimated=self._estimated and own.done.units < self._planned,
        )  # fmt: skip

    @property
    def work_left(self) -> float | None:
        """Work that is left; None if the cost of a row is unknown."""
        own = self.committed
        left, session = own.total_rows - own.done.rows, own.session
        if left <= 0:
            return 0.0
        return left * work_of(session) / session.rows if session.rows else None

    def _expected_rows(self, own: Progress) -> int:
        """Rows in all, if the units that are left have as many as those that are done; ``own`` has the most."""
        done = own.done
        if not done.units:
            return own.total_rows
        return min(own.total_rows, done.rows + round(done.rows / done.units * (self._planned - done.units)))
