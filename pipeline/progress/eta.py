"""How fast a run goes, and when it will end. Plain logic: the caller tells it the time.

Committed units are counted in buckets of time, a bounded number: when there are too many, neighbours are merged. A
bucket knows how many actor-seconds it had, so a run whose actors come and go is judged by what one actor does.

The remaining time is the remaining work, less what is done of it in units not committed yet, over work per actor-second
over the actors there are. Work is rows; of a chain, whose stages have rows of unlike cost, it is token rows. The
estimate's spread has two parts: how well the rate is known, and how evenly the remaining units will come. Both follow
from the dispersion of the units over equal stretches of actor-seconds (variance over mean; 1 for a Poisson process),
which is measured, and drawn towards 1 while little is known. Later buckets weigh more: rates drift with the length of
rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.progress.snapshot import Eta, Rates

__all__ = ["RateTracker"]

_BUCKETS = 64
"""Buckets that are kept at most; an even number."""
_FIRST_SECONDS = 0.5
"""Length of a bucket at the beginning; it doubles as the run goes on."""
_BLOCKS = 8
"""Stretches over which the dispersion is measured."""
_PRIOR_BLOCKS = 3
"""The measured dispersion is averaged with so many blocks of dispersion 1."""
_HALF_LIFE, _HALF_LIFE_UNITS = 0.25, 16
"""A bucket this share of the run's time ago weighs half as much as the present one; or the time in which so many units
were committed, if that is more."""
_TAIL, _TAIL_HIGH = 0.25, 0.5
"""Added to the remaining time, and to its upper bound, of the time for which a unit is held."""
_LEAST_UNITS = 2
"""With fewer units nothing is said of the end."""
_Z80 = 1.2816
"""80% of a normal distribution lie within so many standard deviations."""
_LATELY_SECONDS, _LATELY_UNITS = 20.0, 8
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

    def merged_with(self, other: _Bucket) -> _Bucket:
        return _Bucket(
            seconds=self.seconds + other.seconds, exposure=self.exposure + other.exposure,
            units=self.units + other.units, rows=self.rows + other.rows, tokens=self.tokens + other.tokens,
            forwards=self.forwards + other.forwards, work=self.work + other.work,
        )  # fmt: skip


class RateTracker:
    """Counts units as they are committed. Time in which no actor is ready does not count."""

    def __init__(self) -> None:
        self._buckets = [_Bucket()]
        self._length = _FIRST_SECONDS
        self._now: float | None = None

    def advance(self, now: float, actors: int) -> None:
        """Time has gone on to ``now`` (seconds of any clock); since the last call so many ``actors`` were ready."""
        before, self._now = self._now, now
        if before is None or actors <= 0:
            return
        left = max(0.0, now - before)
        while left > 0:
            last = self._buckets[-1]
            if last.seconds >= self._length:
                self._buckets.append(last := _Bucket())
                if len(self._buckets) > _BUCKETS:
                    self._merge()
                    last = self._buckets[-1]
            step = min(left, max(self._length - last.seconds, 1e-6))
            last.seconds += step
            last.exposure += step * actors
            left -= step

    def add(self, *, rows: int, tokens: int, forwards: int, work: float | None = None) -> None:
        """A unit was committed at the time of the last :meth:`advance`. ``work``: that it was; None: its rows."""
        last = self._buckets[-1]
        last.units += 1
        last.rows += rows
        last.tokens += tokens
        last.forwards += forwards
        last.work += rows if work is None else work

    @property
    def seconds(self) -> float:
        """Time in which an actor was ready."""
        return math.fsum(bucket.seconds for bucket in self._buckets)

    def recent(self) -> Rates:
        """Rates of the last commits."""
        seconds, units, rows, tokens, forwards = 0.0, 0, 0, 0, 0
        for bucket in reversed(self._buckets):
            seconds, units = seconds + bucket.seconds, units + bucket.units
            rows, tokens, forwards = rows + bucket.rows, tokens + bucket.tokens, forwards + bucket.forwards
            if seconds >= _LATELY_SECONDS and units >= _LATELY_UNITS:
                break
        return Rates(seconds=seconds if units else 0.0, rows=rows, tokens=tokens, decode_forwards=forwards)

    def eta(self, work: float, actors: int, running: int = 0, ahead: float | None = None) -> Eta | None:
        """When all work will be committed; None if nothing can be said of it.

        Args:
            work: that is left, in the measure of :meth:`add`.
            actors: that are ready.
            running: units that they hold.
            ahead: work that is done in these units already; None if it is not known.
        """
        total = sum(bucket.units for bucket in self._buckets)
        if work <= 0 or actors <= 0 or total < _LEAST_UNITS:
            return None
        half_life = max(_HALF_LIFE, _HALF_LIFE_UNITS / total)
        weights = _weights([bucket.seconds for bucket in self._buckets], half_life)
        pairs = list(zip(weights, self._buckets, strict=True))
        weighted_work = math.fsum(w * bucket.work for w, bucket in pairs)
        weighted_exposure = math.fsum(w * bucket.exposure for w, bucket in pairs)
        if weighted_work <= 0 or weighted_exposure <= 0:
            return None
        all_work = math.fsum(bucket.work for bucket in self._buckets)
        coming = max(1.0, work * total / all_work)
        left = float(work)
        if ahead is not None:
            # Units are half done on average once a run is under way, which commits alone make up for: at the beginning
            # too few are counted, at the end as many too many. In between the first buckets weigh nothing any more.
            weighted_work += ahead * weights[0]
            left = max(left / 2, left - ahead + min(running, coming) * all_work / total / 2)
        seconds = left * weighted_exposure / weighted_work / actors
        known = math.fsum(w * bucket.units for w, bucket in pairs) ** 2 / math.fsum(
            w * w * bucket.units for w, bucket in pairs
        )
        spread = _Z80 * math.sqrt(self._dispersion() * (1 / known + 1 / coming))
        # Little's law: how long a unit is held. At the end some actors have nothing left while others finish theirs.
        held = min(running, coming) * seconds / coming
        high = seconds * math.exp(spread) + _TAIL_HIGH * held
        return Eta(seconds=seconds + _TAIL * held, low=seconds * math.exp(-spread), high=high)

    def _dispersion(self) -> float:
        """Variance over mean of the units in equal stretches of actor-seconds."""
        total = math.fsum(bucket.exposure for bucket in self._buckets)
        counts = _split([(bucket.exposure, bucket.units) for bucket in self._buckets], total / _BLOCKS)
        mean = sum(counts) / len(counts)
        squares = math.fsum((count - mean) ** 2 for count in counts) / mean
        return (squares + _PRIOR_BLOCKS) / (len(counts) - 1 + _PRIOR_BLOCKS)

    def _merge(self) -> None:
        """Merge neighbours, two by two."""
        pairs = itertools.zip_longest(self._buckets[::2], self._buckets[1::2])
        self._buckets = [one if other is None else one.merged_with(other) for one, other in pairs]
        self._length *= 2


def _weights(seconds: Sequence[float], half_life: float) -> list[float]:
    """Of each bucket: 1 at the end, half of it ``half_life`` of all the time earlier."""
    whole = math.fsum(seconds) or 1.0
    ages = list(itertools.accumulate(reversed(seconds)))
    return [0.5 ** (age / whole / half_life) for age in reversed(ages)]


def _split(pieces: Sequence[tuple[float, float]], length: float) -> list[float]:
    """Cut (length, count) pieces into stretches of one length; a piece on a border is shared in proportion."""
    counts, filled = [0.0], 0.0
    for size, count in pieces:
        left = size
        while left > 0:
            if filled >= length * (1 - 1e-9) and len(counts) < _BLOCKS:
                counts.append(0.0)
                filled = 0.0
            step = left if len(counts) == _BLOCKS else min(left, length - filled)
            counts[-1] += count * step / size
            filled += step
            left -= max(step, 1e-12)
    return counts
