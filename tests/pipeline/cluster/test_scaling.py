"""The number of actors: enough for waiting units, none for nothing, and not up and down; plain logic."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.scaling import Change, Load, Member, PoolLimits, Scaler

POOL = PoolLimits(name="", least=0, most=8, held=4, idle_seconds=60.0)


def full(actor: int, pool: str = "", held: int = 4) -> Member:
    return Member(actor=actor, pool=pool, ready=True, held=held, since=0.0)


def idle(actor: int, since: float, pool: str = "") -> Member:
    return Member(actor=actor, pool=pool, ready=True, held=0, since=since)


def pending(actor: int, since: float, pool: str = "") -> Member:
    return Member(actor=actor, pool=pool, ready=False, held=0, since=since)


def load(waiting: int, running: int = 0, queued: int | None = None, unit_seconds: float | None = None) -> Load:
    queued = waiting if queued is None else queued
    return Load(waiting=waiting, queued=queued, running=running, unit_seconds=unit_seconds)


def decide(work: Load, members: list[Member], *pools: PoolLimits, now: float = 0.0) -> Change:
    return Scaler().decide(work, pools or (POOL,), members, now)


@pytest.mark.parametrize(
    ("work", "members", "limits", "start"),
    [
        (load(0), [], {}, 0),
        (load(1, queued=0), [], {}, 1),
        (load(100, queued=0), [], {}, 8),
        (load(2, queued=0), [], {"least": 5}, 2),
        (load(100, queued=0), [pending(0, 0.0)], {}, 0),
        (load(100, queued=0), [pending(0, 0.0)], {"least": 3}, 2),
        (load(10, 4), [full(0)], {}, 3),
        (load(10, 4), [full(0), pending(1, 0.0)], {}, 2),
        (load(10, 4), [full(0), idle(1, 0.0)], {}, 0),
        (load(10, 4, queued=0), [full(0)], {}, 0),
        (load(0, 4), [full(0)], {}, 0),
        (load(100, 4, unit_seconds=1.0), [full(0)], {}, 0),
        (load(1000, 4, unit_seconds=1.0), [full(0)], {}, 7),
        (load(200, 4, unit_seconds=1.0), [full(0)], {}, 1),
        (load(100, 4, unit_seconds=500.0), [full(0)], {"most": 100}, 25),
        (load(1, 4), [full(0)], {"most": 100}, 1),
    ],
    ids=str,
)
def test_actors_are_asked_for_as_the_waiting_units_justify(
    work: Load, members: list[Member], limits: dict[str, int], start: int
) -> None:
    found = decide(work, members, replace(POOL, **limits))  # type: ignore[arg-type]
    assert sum(found.start.values()) == start
    assert not found.end


def test_another_pool_is_asked_only_for_what_the_first_cannot_give_or_has_not_given_for_long() -> None:
    first, second = replace(POOL, name="a", most=2), replace(POOL, name="b", held=2)
    assert decide(load(6), [], first, second).start == {"a": 2}
    assert decide(load(12), [], first, second).start == {"a": 2, "b": 2}
    asked = [pending(0, 0.0, "a"), pending(1, 0.0, "a")]
    assert decide(load(6), asked, first, second, now=1.0).start == {}
    assert decide(load(6), asked, first, second, now=100.0).start == {"b": 3}


def test_pending_actors_that_no_unit_waits_for_are_cancelled_the_youngest_first() -> None:
    members = [full(0), pending(1, 1.0), pending(2, 2.0), pending(3, 2.0)]
    assert decide(load(1, 4), members).end == (3, 2)
    assert decide(load(0, 4), members).end == (3, 2, 1)
    assert decide(load(0, 4), members, replace(POOL, least=3)).end == (3,)
    assert decide(load(9, 4), members, replace(POOL, most=2)).end == (3, 2)


def test_idle_actors_are_ended_soon_when_nothing_waits_and_late_when_something_does_and_one_stays() -> None:
    members = [full(0, held=1), idle(1, 0.0), idle(2, 5.0), idle(3, 9.0)]
    assert decide(load(0, 1), members, now=10.0).end == (1, 2)
    assert decide(load(0, 1), members, now=90.0).end == (1, 2), "one stays for a backup"
    assert decide(load(5, 1), members, now=10.0).end == ()
    assert decide(load(5, 1), members, now=62.0).end == (1,)
    assert decide(load(0, 1), members, replace(POOL, least=3), now=90.0).end == (1,)


@given(
    data=st.data(),
    least=st.integers(0, 4),
    more=st.integers(1, 6),
    waiting=st.integers(0, 40),
    unit_seconds=st.none() | st.floats(0.01, 1000),
)
@settings(max_examples=60, deadline=None)
def test_whatever_there_is_the_limits_hold_and_nobody_with_units_is_ended(
    data: st.DataObject, least: int, more: int, waiting: int, unit_seconds: float | None
) -> None:
    pools = [
        replace(POOL, name="a", least=least, most=least + more, idle_seconds=data.draw(st.floats(0, 100))),
        replace(POOL, name="b", least=0, most=more, held=data.draw(st.integers(1, 9))),
    ]
    members = []
    for pool in pools:
        for _ in range(data.draw(st.integers(0, pool.most))):
            ready = data.draw(st.booleans())
            held = data.draw(st.integers(0, pool.held)) if ready else 0
            since = data.draw(st.floats(0, 200))
            members.append(Member(actor=len(members), pool=pool.name, ready=ready, held=held, since=since))
    running = sum(member.held for member in members)
    work = load(waiting, running, queued=data.draw(st.integers(0, waiting)), unit_seconds=unit_seconds)
    found = decide(work, members, *pools, now=200.0)
    assert len(set(found.end)) == len(found.end)
    assert not any(member.held for member in members if member.actor in found.end)
    left = {pool.name: [m for m in members if m.pool == pool.name and m.actor not in found.end] for pool in pools}
    total = 0
    for pool in pools:
        before = sum(member.pool == pool.name for member in members)
        after = len(left[pool.name]) + found.start.get(pool.name, 0)
        total += after
        assert len(left[pool.name]) >= min(before, pool.least), "nobody is ended below the least"
        assert after <= max(before, pool.most)
    if not waiting + running:
        assert found == Change(start={}, end=())
    else:
        assert total >= 1, "work without an actor that is there or asked for would wait for ever"
        pending = sum(not member.ready for member in members)
        assert len(left["a"]) + found.start.get("a", 0) >= least or pending + sum(found.start.values()) >= waiting
        idle_before = [m for m in members if m.ready and not m.held]
        assert not idle_before or any(m.actor not in found.end for m in idle_before)
    assert sum(found.start.values()) <= waiting


@dataclass
class _Simulated:
    """A cluster with ``room`` actors, which take ``start`` seconds to come up and ``unit`` seconds for a unit."""

    pool: PoolLimits
    room: int
    start: float
    unit: float
    burst: int = 1
    """Units that are tokenised together."""

    def run(self, units: int, arrivals: float, seed: int) -> tuple[float, int, int, int]:
        """Seconds to the end, actors that were asked for, that became ready, and the most at once.

        ``arrivals``: units that are tokenised in a second.
        """
        scaler, draw = Scaler(), random.Random(seed)
        asked: dict[int, float] = {}
        placed: dict[int, float] = {}
        ready: dict[int, float] = {}
        running: dict[int, list[float]] = {}
        done, given, count, came, most, now = 0, 0, 0, 0, 0, 0.0
        while done < units:
            now += 0.5
            for actor in [actor for actor in asked if actor not in placed][: self.room - len(placed)]:
                placed[actor] = now
            for actor, at in placed.items():
                if actor not in ready and now - at >= self.start:
                    ready[actor], running[actor] = now, []
                    scaler.record_start(now - at)
                    came += 1
            for actor, ends in running.items():
                over = [end for end in ends if end <= now]
                done += len(over)
                running[actor] = [end for end in ends if end > now]
                if over:
                    ready[actor] = now
            queued = min(units, int(arrivals * now / self.burst) * self.burst) - given
            while queued and (free := [a for a, ends in running.items() if len(ends) < self.pool.held]):
                actor = min(free, key=lambda name: len(running[name]))
                running[actor].append(now + self.unit * draw.uniform(0.8, 1.2))
                given, queued = given + 1, queued - 1
            members = [
                Member(actor=actor, pool="", ready=actor in ready, held=len(running.get(actor, ())),
                       since=ready.get(actor, at))
                for actor, at in asked.items()
            ]  # fmt: skip
            work = load(units - given, given - done, queued, self.unit if done else None)
            change = scaler.decide(work, [self.pool], members, now)
            for actor in change.end:
                for held in (asked, placed, ready, running):
                    held.pop(actor, None)
            for _ in range(change.start.get("", 0)):
                asked[count] = now
                count += 1
            most = max(most, len(asked))
            assert now < 50_000
        return now, count, came, most


@given(units=st.integers(1, 2000), room=st.integers(1, 12), start=st.floats(1, 120), unit=st.floats(0.5, 60),
       seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_with_a_steady_load_actors_only_come_and_at_the_end_only_go(
    units: int, room: int, start: float, unit: float, seed: int
) -> None:
    cluster = _Simulated(POOL, room, start, unit)
    seconds, asked, came, most = cluster.run(units, arrivals=1000.0, seed=seed)
    assert most <= POOL.most
    assert asked <= POOL.most, "nobody is asked for again after somebody has gone"
    assert came <= min(room, POOL.most, units)
    alone = start + 2 + (1.2 * unit + 0.5) * (units / POOL.held + 1)  # half a second is a step of the simulation
    assert seconds <= alone, "the range is never slower than one actor"
    helpers = min(room, POOL.most)
    assert seconds <= alone / helpers + 4 * max(start, 15.0) + 3 * unit + 10, "and nearly as fast as all of them"


@pytest.mark.parametrize("burst", [1, 30, 90])
@pytest.mark.parametrize("arrivals", [0.3, 1.0, 3.0])
def test_actors_that_wait_for_the_input_are_given_back_and_not_asked_for_again_and_again(
    arrivals: float, burst: int
) -> None:
    cluster = _Simulated(replace(POOL, idle_seconds=20.0), 8, 10.0, 2.0, burst)
    seconds, asked, *_ = cluster.run(1500, arrivals, seed=1)
    assert seconds <= 1500 / arrivals + 2 * burst / arrivals + 60, "the input sets the pace"
    assert asked <= 8 * 6, f"{asked} starts of 8 actors in {seconds} s"
