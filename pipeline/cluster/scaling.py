"""Decides how many actors to ask for, and which to end. Plain logic; knows no Ray.

An actor is worth asking for if units wait that the actors there are would not finish within twice the time that an
actor takes to start. It is asked for at once, whether or not the cluster has room: Ray keeps it pending, so an
autoscaler adds nodes for it. Pending actors that no unit waits for are cancelled, and idle ones are ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_START_SECONDS = 15.0
"""Of an actor, before the first one has started."""
_PATIENCE_SECONDS = 30.0
"""An actor that was asked for longer ago does not count as coming: another pool is asked."""
_DRAIN_SECONDS = 2.0
"""An idle actor is ended after so long once no unit waits."""
_QUIET, _LONGEST_QUIET = 5.0, 3600.0
"""After an actor was ended while units waited (they are read too slowly), no more are asked for for this many times the
time that it had been idle; twice as long each time that this happens again, up to so many seconds."""


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """A pool: between ``least`` and ``most`` actors, which hold ``held`` units each."""

    name: str
    least: int
    most: int
    held: int
    idle_seconds: float


@dataclass(kw_only=True)
class Member:
    """An actor that was asked for and has not ended.

    Attributes:
        actor, pool: which one.
        ready: whether it has loaded its model; if not, it is pending or starts.
        held: units that it holds.
        since: when it was asked for; of one that is ready, when it last held a unit or became ready.
        node: where its process runs; None: not known yet.
        until: when it has to go at the latest; None if it stays.
    """

    actor: int
    pool: str
    ready: bool = False
    held: int = 0
    since: float
    node: str | None = None
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work that is left.

    Attributes:
        waiting: units that no actor holds.
        queued: those of them that could be given out at once, as they are read and tokenised.
        running: units that actors hold.
        unit_seconds: how long an actor holds a unit; None if not known yet.
    """

    waiting: int
    queued: int
    running: int
    unit_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A decision: actors to start, pool by pool, and actors to end."""

    start: Mapping[str, int]
    end: Sequence[int]


class Scaler:
    """Decisions over time. It remembers how long actors take to start, and when units came too slowly."""

    def __init__(self) -> None:
        self._start_seconds = _START_SECONDS
        self._quiet, self._quiet_until, self._grew = 0.0, -math.inf, False

    def record_start(self, seconds: float) -> None:
        """An actor became ready so long after it was placed on a node."""
        self._start_seconds = seconds

    def decide(self, load: Load, pools: Sequence[PoolLimits], members: Iterable[Member], now: float) -> Change:
        """How many actors to start, and which to end, at this moment; the first pool is asked first.

        With nothing left to do nothing changes, as the caller ends them all. ``now`` is on the clock of
        :attr:`Member.since`.
        """
        left = load.waiting + load.running
        members = list(members)
        if not left:
            return Change(start={}, end=())
        surplus = _surplus(load, pools, members)
        idle = _idle(load, pools, [member for member in members if member.actor not in surplus], now)
        if idle and load.waiting:
            longest = max(now - member.since for member in members if member.actor in idle)
            doubled = 2 * self._quiet if self._grew else self._quiet
            self._quiet = min(_LONGEST_QUIET, max(doubled, _QUIET * longest, _QUIET * self._start_seconds))
            self._quiet_until, self._grew = now + self._quiet, False
        gone = {*surplus, *idle}
        staying = [member for member in members if member.actor not in gone]
        return Change(start=self._wanted(load, pools, staying, now, shrinks=bool(gone)), end=(*surplus, *idle))

    def _wanted(
        self, load: Load, pools: Sequence[PoolLimits], members: Sequence[Member], now: float, *, shrinks: bool
    ) -> dict[str, int]:
        count = {pool.name: sum(member.pool == pool.name for member in members) for pool in pools}
        # An actor that is asked for will get a unit, and so will those that were asked for before.
        room = load.waiting - sum(not member.ready for member in members)
        start: dict[str, int] = {}
        for pool in pools:
            if (more := min(pool.least - count[pool.name], room)) > 0:
                start[pool.name] = more
                room -= more
        idle = any(member.ready and not member.held for member in members)
        grows = bool(load.queued) and not idle and not shrinks and now >= self._quiet_until
        if members and not grows:
            return start
        shares = {pool.name: self._share(pool, load) for pool in pools}
        coming = [member for member in members if member.ready or now - member.since < _PATIENCE_SECONDS]
        covered = sum(shares[member.pool] for member in coming)
        covered += sum(shares[name] * more for name, more in start.items())
        for pool in pools:
            short = math.ceil((load.waiting + load.running - covered) / shares[pool.name])
            free = pool.most - count[pool.name] - start.get(pool.name, 0)
            if (more := min(short, free, room)) > 0:
                self._grew = True
                start[pool.name] = start.get(pool.name, 0) + more
                covered += more * shares[pool.name]
                room -= more
        return start

    def _share(self, pool: PoolLimits, load: Load) -> float:
        """Units that an actor finishes before another one would be of use; at least those it holds at once."""
        if not load.unit_seconds:
            return pool.held
        return max(pool.held, 2 * self._start_seconds * pool.held / load.unit_seconds)


def _idle(load: Load, pools: Sequence[PoolLimits], members: Sequence[Member], now: float) -> list[int]:
    """Ready actors without a unit for too long. One stays: for a backup, or for units of an actor that is lost."""
    idle = [member for member in members if member.ready and not member.held]
    end: list[int] = []
    for pool in reversed(pools):
        allowed = pool.idle_seconds if load.waiting else min(pool.idle_seconds, _DRAIN_SECONDS)
        too_many = sum(member.pool == pool.name for member in members) - pool.least
        late = sorted((m for m in idle if m.pool == pool.name and now - m.since >= allowed), key=lambda m: m.since)
        end += [member.actor for member in late[: max(0, too_many)]]
    return end[: len(idle) - 1] if idle else []


def _surplus(load: Load, pools: Sequence[PoolLimits], members: Sequence[Member]) -> list[int]:
    """Actors that are not ready and that no unit waits for, and those above ``most``; the youngest first."""
    end: list[int] = []
    starting = [member for member in members if not member.ready]
    too_many = len(starting) - load.waiting
    for pool in reversed(pools):
        own = sum(member.pool == pool.name for member in members)
        pending = sorted((m for m in starting if m.pool == pool.name), key=lambda m: (-m.since, -m.actor))
        for member in pending:
            if own > pool.most or (too_many > 0 and own > pool.least):
                end.append(member.actor)
                own -= 1
                too_many -= 1
    return end
