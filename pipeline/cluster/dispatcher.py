"""Decides which actor runs which unit next. Plain logic; knows no Ray.

Actors pull: the next unit goes to the actor that holds the fewest units. Among the prefetched units the dispatcher
picks the one that saves this actor's prefix cache the most tokens, and avoids units whose prefixes another actor has
cached. A unit can be overtaken by later ones only a bounded number of times.

Speculative execution: once the input is used up, an actor with room runs a backup of a unit held by the actor that is
expected to finish last. It takes the newest unit first while the slow actor works from the oldest. The first result
counts and the other execution is dropped. So an actor that is slow, hangs or restarts does not delay the end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Assignment", "Dispatcher"]

_KNOWN_PREFIXES = 1 << 16
"""Prefixes whose actor is remembered; the least recently used are forgotten."""
_RECENT = 8
"""An actor's speed is measured over so many finished units."""
_BACKUP_GAIN = 1.5
"""A backup starts if the slow actor is expected to need this many times as long as the idle one needs for a unit."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """``actor`` is to run ``unit_id``. ``execution``: 0 for the first execution, 1 for a speculative backup."""

    unit_id: str
    actor: int
    execution: int


@dataclass(kw_only=True)
class _Unit:
    unit_id: str
    histogram: Mapping[int, int]
    overtaken: int = 0
    actors: dict[int, float] = field(default_factory=dict)
    """Actor -> when it was given the unit."""
    has_backup: bool = False


class _Actor:
    """The units an actor holds, oldest first, and its measured speed."""

    def __init__(self, now: float) -> None:
        self.units: dict[str, _Unit] = {}
        self._ends: deque[float] = deque([now], maxlen=_RECENT + 1)
        self.unit_seconds: float | None = None

    def record_end(self, seconds: float, now: float) -> None:
        self._ends.append(now)
        self.unit_seconds = seconds if self.unit_seconds is None else 0.7 * self.unit_seconds + 0.3 * seconds

    def seconds_left(self, now: float) -> float:
        """Expected time to finish the units it holds, at its recent speed; grows while no unit finishes."""
        return len(self.units) * (now - self._ends[0]) / len(self._ends)


class Dispatcher:
    """Units in, assignments out. The caller reports every event; ``now`` is in seconds of any monotonic clock.

    Args:
        held: units that an actor holds at most.
        max_overtakes: a unit that later ones overtook so often goes next.
    """

    def __init__(self, *, held: int, max_overtakes: int) -> None:
        self._held = held
        self._max_overtakes = max_overtakes
        self._ready: list[_Unit] = []
        self._running: dict[str, _Unit] = {}
        self._actors: dict[int, _Actor] = {}
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._ended = False

    @property
    def waiting(self) -> int:
        """Units that no actor holds."""
        return len(self._ready)

    @property
    def running(self) -> int:
        """Units that an actor holds."""
        return len(self._running)

    @property
    def finished(self) -> bool:
        """Whether every unit is done and no more will come."""
        return self._ended and not self._ready and not self._running

    def join(self, actor: int, now: float) -> None:
        """An actor is ready for units."""
        self._actors[actor] = _Actor(now)

    def offer(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        """Add a unit. ``histogram``: prefix -> tokens of the unit's prompts that a cache with this prefix saves."""
        self._ready.append(_Unit(unit_id=unit_id, histogram=histogram))

    def end_input(self) -> None:
        """No more units will be offered."""
        self._ended = True

    def next(self, now: float) -> Assignment | None:
        """The next execution to start; None if there is nothing to start now."""
        free = [name for name, actor in self._actors.items() if len(actor.units) < self._held]
        free.sort(key=lambda name: len(self._actors[name].units))
        if not free:
            return None
        if self._ready:
            return self._give(self._pick(free[0]), free[0], now)
        if self._ended:
            for name in free:
                if (unit := self._backup_candidate(name, now)) is not None:
                    return self._give(unit, name, now)
        return None

    def done(self, unit_id: str, actor: int, now: float) -> list[Assignment] | None:
        """An actor finished a unit. Returns its other executions, to be dropped; None if another result came first."""
        unit = self._running.pop(unit_id, None)
        if unit is None:
            return None
        self._actors[actor].record_end(now - unit.actors[actor], now)
        every = [Assignment(unit_id=unit_id, actor=name, execution=number) for number, name in enumerate(unit.actors)]
        for execution in every:
            del self._actors[execution.actor].units[unit_id]
        return [execution for execution in every if execution.actor != actor]

    def decline(self, unit_id: str, actor: int) -> None:
        """An actor refuses a backup it was given: only the first execution goes on."""
        unit = self._running.get(unit_id)
        if unit is not None and unit.actors.pop(actor, None) is not None:
            del self._actors[actor].units[unit_id]

    def _give(self, unit: _Unit, name: int, now: float) -> Assignment:
        execution = len(unit.actors)
        unit.actors[name] = now
        unit.has_backup = execution > 0
        self._running[unit.unit_id] = unit
        self._actors[name].units[unit.unit_id] = unit
        for prefix in unit.histogram:
            self._owners[prefix] = name
            self._owners.move_to_end(prefix)
        while len(self._owners) > _KNOWN_PREFIXES:
            self._owners.popitem(last=False)
        return Assignment(unit_id=unit.unit_id, actor=name, execution=execution)

    def _pick(self, name: int) -> _Unit:
        """Take the waiting unit that fits an actor best; the oldest of equals."""
        best = 0
        if self._ready[0].overtaken < self._max_overtakes:
            best = max(range(len(self._ready)), key=lambda i: (self._fit(self._ready[i], name), -i))
        for unit in self._ready[:best]:
            unit.overtaken += 1
        return self._ready.pop(best)

    def _fit(self, unit: _Unit, name: int) -> int:
        """Tokens that this actor's prefix cache saves, minus those that other actors' caches would save."""
        owners = ((self._owners.get(prefix), tokens) for prefix, tokens in unit.histogram.items())
        return sum(tokens if owner == name else -tokens for owner, tokens in owners if owner is not None)

    def _backup_candidate(self, name: int, now: float) -> _Unit | None:
        """A unit of the slowest other actor that this one would probably finish first."""
        own = self._actors[name].unit_seconds or self._usual_seconds()
        if own is None:
            return None
        slowest: tuple[float, _Unit] | None = None
        for other, actor in self._actors.items():
            single = [unit for unit in actor.units.values() if not unit.has_backup]
            left = actor.seconds_left(now)
            if other != name and single and left > _BACKUP_GAIN * own and (slowest is None or left > slowest[0]):
                slowest = (left, single[-1])
        return None if slowest is None else slowest[1]

    def _usual_seconds(self) -> float | None:
        known = [actor.unit_seconds for actor in self._actors.values() if actor.unit_seconds is not None]
        return sum(known) / len(known) if known else None
