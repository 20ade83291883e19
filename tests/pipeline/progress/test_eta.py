"""The time that is left, against simulated runs whose end is known; and the cost of knowing it."""

from __future__ import annotations

import heapq
import random
import statistics
from dataclasses import dataclass

import pytest

from pipeline.progress.eta import RateTracker

PULSE = 0.25


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: when actors become ready, units that each holds at once, units, and the spread of their seconds."""

    joins: tuple[float, ...] = (0.0,)
    held: int = 3
    units: int = 60
    spread: float = 0.3
    seconds: float = 4.0
    rows: int = 32
    drift: float = 1.0
    """Units of the second half take so many times as long."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """The estimate of the end, and how long it took from then on."""

    eta: float
    truth: float

    @property
    def ratio(self) -> float:
        return self.eta / self.truth


def simulate(run: Run, seed: int, share: float) -> Said:
    """The estimate when ``share`` of the units are done. Unit times are gamma distributed; actors never idle."""
    rng, shape = random.Random(seed), run.spread**-2
    tracker, now, ready, given, done = RateTracker(), 0.0, 0, 0, 0
    said: tuple[float, float] | None = None
    held: dict[int, tuple[float, float]] = {}
    events = [(at, 0, 0) for at in run.joins]
    heapq.heapify(events)
    tracker.advance(0.0, 0)
    while done < run.units:
        at, kind, unit = heapq.heappop(events)
        while now + PULSE < at:
            now += PULSE
            tracker.advance(now, ready)
        now = at
        tracker.advance(now, ready)
        ready += kind == 0
        if kind == 1:
            done += 1
            del held[unit]
            tracker.add(rows=run.rows, tokens=run.rows * 50)
            if said is None and done >= share * run.units:
                left = run.units - done
                eta = tracker.eta(left, ready)
                assert eta is not None
                said = now, eta
        for _ in range(run.held if kind == 0 else 1):
            if given < run.units:
                given += 1
                longer = run.drift if given > run.units / 2 else 1.0
                held[given] = now, longer * rng.gammavariate(shape, run.seconds / shape)
                heapq.heappush(events, (now + held[given][1], 1, given))
    assert said is not None
    return Said(eta=said[1], truth=now - said[0])


RUNS = {
    "one actor": Run(),
    "one unit at a time": Run(held=1),
    "actors join": Run(joins=(0.0, 20.0, 22.0, 25.0), units=200),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_time_is_right_in_the_middle_of_a_run(name: str) -> None:
    found = [simulate(RUNS[name], seed, 0.5) for seed in range(15)]
    assert statistics.median(abs(one.ratio - 1) for one in found) < 0.2


def test_rates_that_change_are_noticed_before_the_end() -> None:
    run = Run(units=400, drift=3.0)
    early, late = (statistics.median(simulate(run, seed, share).ratio for seed in range(10)) for share in (0.5, 0.95))
    assert early < 0.5, "nobody can know that the second half is slower"
    assert 0.5 < late < 1.5


def test_nothing_is_said_before_there_is_a_rate_nor_when_nothing_is_left() -> None:
    tracker = RateTracker()
    tracker.advance(0.0, 1)
    assert tracker.eta(10, 1) is None
    tracker.advance(5.0, 1)
    tracker.add(rows=10, tokens=10)
    assert tracker.eta(10, 1) is None, "one unit is no rate"
    tracker.add(rows=10, tokens=10)
    eta = tracker.eta(10, 1)
    assert eta is not None
    assert eta == pytest.approx(25.0, rel=0.1)
    assert tracker.eta(0, 1) is None
    assert tracker.eta(10, 0) is None, "nobody works"
    twice = tracker.eta(10, 2)
    assert twice is not None
    assert twice == pytest.approx(eta / 2), "the rate is one actor's"


def test_time_without_an_actor_does_not_count() -> None:
    tracker = RateTracker()
    for now, actors in ((0.0, 0), (100.0, 0), (110.0, 1)):
        tracker.advance(now, actors)
    for _ in range(4):
        tracker.add(rows=5, tokens=50)
    recent = tracker.recent()
    assert (recent.rows_per_second, recent.tokens_per_second) == (2.0, 20.0)


def test_recent_rates_forget_the_beginning() -> None:
    tracker = RateTracker()
    for second in range(400):
        tracker.advance(float(second), 1)
        tracker.add(rows=1 if second < 300 else 7, tokens=1)
    assert tracker.recent().rows_per_second == pytest.approx(7.0, rel=0.1)
