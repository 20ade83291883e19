"""Decides which actor runs which unit next. Plain logic; knows no Ray.

Actors pull: the next unit goes to the actor that holds the smallest share of the units it may hold. Prefetched units
with long rows go first, so that the last units are short ones. Among the first units the dispatcher picks the one with
the most tokens in this actor's prefix cache, and avoids units whose prefixes another actor has cached. A unit can be
overtaken by later ones only a bounded number of times.

A decision costs the same for ten actors and for thousands. It looks at a bounded number of waiting units: the first
ones, and those that begin like the actor's last unit. Actors stand in a heap.

Actors come and go. The units of one that leaves go back to the front of the queue, unless another actor runs them too;
its results still count if they come before those of others.

Speculative execution: once the input is used up, an actor with room runs a backup of a unit held by the actor that is
expected to finish last. It takes the newest unit first while the slow actor works from the oldest. The first result
counts and the other execution is dropped. So an actor that is slow, hangs or restarts does not delay the end.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.cluster.waiting_units import WaitingUnits
from pipeline.worker.lengths import Kind, Lengths, Sums

_KNOWN_PREFIXES = 1 << 16
"""Prefixes whose actor is remembered; the least recently used are forgotten."""
_RECENT = 8
"""Finished units over which an actor's speed is measured."""
_LOOKS = 32
"""Searches for a backup in the time of a unit, after a search that found no unit worth it."""
_BACKUP_GAIN = 1.5
"""A backup starts if the slow actor is expected to need this many times as long as the idle one needs for a unit."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """``actor`` is to run ``unit_id``. ``execution``: 0 if no other actor runs it, else a backup's number, from 1."""

    unit_id: str
    actor: int
    execution: int


@dataclass(frozen=True, kw_only=True)
class _Run:
    """An execution: its number, and when it was given."""

    number: int
    begin: float


@dataclass(kw_only=True)
class _Unit:
    """``runs``: actor -> its execution; empty while the unit waits."""

    unit_id: str
    histogram: Mapping[int, int]
    kinds: Sequence[Kind]
    runs: dict[int, _Run] = field(default_factory=dict)


class _Actor:
    """The units an actor holds, oldest first, and its measured speed. ``held``: units that it holds at most."""

    def __init__(self, number: int, now: float, held: int) -> None:
        self.number = number
        self.held = held
        self.units: dict[str, _Unit] = {}
        self._ends: deque[float] = deque([now], maxlen=_RECENT + 1)
        self.unit_seconds: float | None = None

    def record_end(self, seconds: float, now: float) -> None:
        self._ends.append(now)
        self.unit_seconds = seconds if self.unit_seconds is None else 0.7 * self.unit_seconds + 0.3 * seconds

    def seconds_left(self, now: float) -> float:
        """Expected time to finish the units it holds, at its recent speed; grows while no unit finishes."""
        return len(self.units) * (now - self._ends[0]) / len(self._ends)

    @property
    def share(self) -> float:
        """Units held, divided by the most units allowed; from 1 on the actor takes no unit."""
        return len(self.units) / self.held if self.held else 1.0

    @property
    def newest_alone(self) -> _Unit | None:
        """The newest of its units that no other actor runs."""
        return next((unit for unit in reversed(self.units.values()) if len(unit.runs) == 1), None)


class Dispatcher:
    """Units in, assignments out. The caller reports every event; ``now`` is in seconds of any monotonic clock.

    Args:
        held: units that an actor holds at most, unless :meth:`join` says otherwise.
        max_overtakes: a unit goes next once so many later units have overtaken it.
    """

    def __init__(self, *, held: int, max_overtakes: int) -> None:
        self._held = held
        self._units: dict[str, _Unit] = {}
        self._waiting = WaitingUnits(max_overtakes)
        self._lengths = Lengths()
        self._actors: dict[int, _Actor] = {}
        self._numbers = itertools.count()
        self._shares: list[tuple[float, int, int]] = []
        """A heap of (load, in order of joining, actor); of an actor only the last entry counts."""
        self._speeds, self._measured = 0.0, 0
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._ended = False
        self._next_look = -math.inf

    @property
    def waiting(self) -> int:
        """Units that no actor holds."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Units that actors hold; a unit with a backup counts once."""
        return len(self._units) - len(self._waiting)

    @property
    def unit_seconds(self) -> float | None:
        """Mean seconds for which present actors hold a unit; None before the first unit is done."""
        return self._speeds / self._measured if self._measured else None

    def held_by(self, actor: int) -> int:
        """Units that an actor holds."""
        return len(self._actors[actor].units)

    @property
    def finished(self) -> bool:
        """Whether every unit is done and no more will come."""
        return self._ended and not self._units

    def join(self, actor: int, now: float, held: int | None = None) -> None:
        """Add an actor that is ready for units. ``held``: units that it holds at most, if actors differ."""
        assert actor not in self._actors, "an actor that comes back must have left before"
        self._actors[actor] = _Actor(next(self._numbers), now, self._held if held is None else held)
        self._changed(actor)

    def retire(self, actor: int) -> None:
        """Give an actor no new units; it keeps those that it holds. An unknown actor is ignored."""
        if actor in self._actors:
            self._actors[actor].held = 0

    def leave(self, actor: int) -> list[str]:
        """Remove an actor. Returns its units that go back to the front of the queue, in the order it got them.

        Units that another actor runs too stay with that one. An unknown actor has no units.
        """
        gone = self._actors.pop(actor, None)
        if gone is None:
            return []
        self._count_speed(gone.unit_seconds, -1)
        back = []
        for unit in gone.units.values():
            del unit.runs[actor]
            if not unit.runs:
                back.append(unit)
        for unit in reversed(back):
            self._waiting.put_first(unit.unit_id, unit.histogram)
        for prefix in [prefix for prefix, owner in self._owners.items() if owner == actor]:
            del self._owners[prefix]
        self._waiting.forget(actor)
        return [unit.unit_id for unit in back]

    def learn(self, lengths: Sums) -> None:
        """Add the lengths of rows that finished on an actor."""
        self._lengths.add(lengths)
        if self._lengths.order_is_due():
            self._waiting.sort(lambda unit_id: self._lengths.size(self._units[unit_id].kinds))

    def offer(
        self, unit_id: str, histogram: Mapping[int, int], kinds: Sequence[Kind] = (), *, first: bool = False
    ) -> None:  # fmt: skip
        """Add a unit.

        Args:
            unit_id: the unit.
            histogram: prefix -> tokens of the unit's prompts that a cache with this prefix saves.
            kinds: the kinds of its rows.
            first: put it before all waiting units. A chain finishes units that it has begun before it begins others.
        """
        self._units[unit_id] = _Unit(unit_id=unit_id, histogram=histogram, kinds=kinds)
        if first:
            self._waiting.put_first(unit_id, histogram)
        else:
            self._waiting.put(unit_id, histogram, self._lengths.size(kinds))

    def end_input(self) -> None:
        """No more units will be offered."""
        self._ended = True

    def next(self, now: float) -> Assignment | None:
        """The next execution to start; None if there is nothing to start now."""
        if self._waiting:
            name = self._emptiest()
            return None if name is None else self._give(self._units[self._waiting.take(name, self._fit)], name, now)
        return self._next_backup(now) if self._ended and self._units else None

    def done(self, unit_id: str, actor: int, now: float) -> list[Assignment] | None:
        """Record that an actor finished a unit. Returns other executions to drop; None if another result came first.

        A result of an actor that has left counts too: its staged object still exists.
        """
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return None
        self._waiting.remove(unit_id)
        if actor in unit.runs:
            self._record_end(self._actors[actor], now - unit.runs[actor].begin, now)
        for name in unit.runs:
            del self._actors[name].units[unit_id]
            self._changed(name)
        return [
            Assignment(unit_id=unit_id, actor=name, execution=run.number)
            for name, run in unit.runs.items()
            if name != actor
        ]

    def decline(self, unit_id: str, actor: int) -> None:
        """Record that an actor refused a backup. The unit waits again if no other actor runs it."""
        unit = self._units.get(unit_id)
        if unit is not None and unit.runs.pop(actor, None) is not None:
            del self._actors[actor].units[unit_id]
            self._changed(actor)
            if not unit.runs:
                self._waiting.put_first(unit_id, unit.histogram)

    def _give(self, unit: _Unit, name: int, now: float) -> Assignment:
        execution = 1 + max((run.number for run in unit.runs.values()), default=-1)
        unit.runs[name] = _Run(number=execution, begin=now)
        self._actors[name].units[unit.unit_id] = unit
        self._changed(name)
        for prefix in unit.histogram:
            self._owners[prefix] = name
            self._owners.move_to_end(prefix)
        while len(self._owners) > _KNOWN_PREFIXES:
            self._owners.popitem(last=False)
        return Assignment(unit_id=unit.unit_id, actor=name, execution=execution)

    def _fit(self, histogram: Mapping[int, int], name: int) -> int:
        """Tokens that this actor's prefix cache saves, minus those that other actors' caches would save."""
        owners = ((self._owners.get(prefix), tokens) for prefix, tokens in histogram.items())
        return sum(tokens if owner == name else -tokens for owner, tokens in owners if owner is not None)

    # --- actors ---------------------------------------------------------------------------------------

    def _changed(self, name: int) -> None:
        """Update the heap after an actor's number of units changed."""
        actor = self._actors[name]
        if actor.share < 1:
            heapq.heappush(self._shares, (actor.share, actor.number, name))

    def _emptiest(self) -> int | None:
        """The actor with the smallest load; None if none has room."""
        while self._shares:
            share, number, name = self._shares[0]
            actor = self._actors.get(name)
            if actor is not None and actor.number == number and share == actor.share:
                return name
            heapq.heappop(self._shares)  # an old entry: its actor has another load now, or is gone
        return None

    def _record_end(self, actor: _Actor, seconds: float, now: float) -> None:
        self._count_speed(actor.unit_seconds, -1)
        actor.record_end(seconds, now)
        self._count_speed(actor.unit_seconds, 1)

    def _count_speed(self, unit_seconds: float | None, count: int) -> None:
        """Add an actor's speed to the mean, or remove it."""
        if unit_seconds is not None:
            self._measured += count
            self._speeds = self._speeds + count * unit_seconds if self._measured else 0.0

    # --- speculative execution ------------------------------------------------------------------------

    def _next_backup(self, now: float) -> Assignment | None:
        """A backup for an actor with room: a unit of the slowest other actor that it would probably finish sooner."""
        if self.unit_seconds is None or now < self._next_look:
            return None
        slow = self._two_slowest(now)
        free = [name for name, actor in self._actors.items() if actor.share < 1]
        free.sort(key=lambda name: self._actors[name].share)
        for name in free:
            own = self._actors[name].unit_seconds or self.unit_seconds
            other = next(((left, actor) for left, actor in slow if actor != name), None)
            if other is None or other[0] <= _BACKUP_GAIN * own:
                continue
            unit = self._actors[other[1]].newest_alone
            assert unit is not None
            return self._give(unit, name, now)
        self._next_look = now + self.unit_seconds / _LOOKS
        return None

    def _two_slowest(self, now: float) -> list[tuple[float, int]]:
        """Seconds left and actor, for the two slowest actors with a unit that no other actor runs."""

        def candidates() -> Iterator[tuple[float, int]]:
            for name, actor in self._actors.items():
                if actor.newest_alone is not None:
                    yield actor.seconds_left(now), name

        return heapq.nlargest(2, candidates(), key=lambda found: found[0])
