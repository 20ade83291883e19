"""Which actor does which unit next: plain logic, knows no Ray.

Actors pull: a unit goes to the actor with the fewest units in hand, of those that have room. Of the units that are
read ahead it is given the one whose prompts begin as those that it had before (its prefix cache holds them), if
there is one, and nobody else's while there are others; no unit is overtaken without end.

When the input is used up, an actor with room doubles a unit of the one that is expected to be the last to finish,
the newest first, while that one works from the oldest on: they meet in the middle, the first result counts, and
the other run is dropped. So neither a slow actor nor one that hangs, or is being started anew, holds up the end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Assignment", "Dispatcher"]

_KNOWN_PREFIXES = 1 << 16
"""Prefixes whose actor is remembered; those not seen for longest are forgotten."""
_RECENT = 8
"""Units by whose ends an actor's speed is judged."""
_PAYS = 1.5
"""A unit is doubled where its actor is expected to need so many times what the other one needs for a unit."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """``unit_id`` is to be run by ``actor``; ``copy`` is 0, or 1 where another actor runs it too."""

    unit_id: str
    actor: int
    copy: int


@dataclass(kw_only=True)
class _Unit:
    unit_id: str
    sketch: Mapping[int, int]
    overtaken: int = 0
    actors: dict[int, float] = field(default_factory=dict)
    """Actor -> when it was given the unit."""
    doubled: bool = False


class _Actor:
    """What an actor has in hand, oldest first, and how fast it has been."""

    def __init__(self, now: float) -> None:
        self.units: dict[str, _Unit] = {}
        self._ends: deque[float] = deque([now], maxlen=_RECENT + 1)
        self.unit_seconds: float | None = None

    def ended(self, seconds: float, now: float) -> None:
        self._ends.append(now)
        self.unit_seconds = seconds if self.unit_seconds is None else 0.7 * self.unit_seconds + 0.3 * seconds

    def seconds_left(self, now: float) -> float:
        """Until it will have done what it has in hand, at its recent speed: of one that ends nothing, ever more."""
        return len(self.units) * (now - self._ends[0]) / len(self._ends)


class Dispatcher:
    """Units in, assignments out. The caller tells what happens; times are seconds of any steady clock.

    Args:
        held: units that an actor has in hand at most.
        ahead: a unit that was overtaken so often goes next.
    """

    def __init__(self, *, held: int, ahead: int) -> None:
        self._held = held
        self._ahead = ahead
        self._ready: list[_Unit] = []
        self._running: dict[str, _Unit] = {}
        self._actors: dict[int, _Actor] = {}
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._ended = False

    @property
    def waiting(self) -> int:
        """Units that no actor has."""
        return len(self._ready)

    @property
    def finished(self) -> bool:
        """Whether every unit is done and no more will come."""
        return self._ended and not self._ready and not self._running

    def join(self, actor: int, now: float) -> None:
        """An actor is ready for units."""
        self._actors[actor] = _Actor(now)

    def offer(self, unit_id: str, sketch: Mapping[int, int]) -> None:
        """A unit can be run. ``sketch``: prefix -> tokens of the unit that a cache which holds it would save."""
        self._ready.append(_Unit(unit_id=unit_id, sketch=sketch))

    def end_input(self) -> None:
        """No more units will be offered."""
        self._ended = True

    def next(self, now: float) -> Assignment | None:
        """The next thing to start; None where nothing is to be done for the moment."""
        free = [name for name, actor in self._actors.items() if len(actor.units) < self._held]
        free.sort(key=lambda name: len(self._actors[name].units))
        if not free:
            return None
        if self._ready:
            return self._give(self._pick(free[0]), free[0], now)
        if self._ended:
            for name in free:
                if (unit := self._to_double(name, now)) is not None:
                    return self._give(unit, name, now)
        return None

    def done(self, unit_id: str, actor: int, now: float) -> list[Assignment] | None:
        """An actor has the result of a unit. The runs of it to be dropped; None where another's result came first."""
        unit = self._running.pop(unit_id, None)
        if unit is None:
            return None
        self._actors[actor].ended(now - unit.actors[actor], now)
        runs = [Assignment(unit_id=unit_id, actor=name, copy=copy) for copy, name in enumerate(unit.actors)]
        for run in runs:
            del self._actors[run.actor].units[unit_id]
        return [run for run in runs if run.actor != actor]

    def decline(self, unit_id: str, actor: int) -> None:
        """An actor does not do the copy it was given: the unit is left to who has it."""
        unit = self._running.get(unit_id)
        if unit is not None and unit.actors.pop(actor, None) is not None:
            del self._actors[actor].units[unit_id]

    def _give(self, unit: _Unit, name: int, now: float) -> Assignment:
        copy = len(unit.actors)
        unit.actors[name] = now
        unit.doubled = copy > 0
        self._running[unit.unit_id] = unit
        self._actors[name].units[unit.unit_id] = unit
        for prefix in unit.sketch:
            self._owners[prefix] = name
            self._owners.move_to_end(prefix)
        while len(self._owners) > _KNOWN_PREFIXES:
            self._owners.popitem(last=False)
        return Assignment(unit_id=unit.unit_id, actor=name, copy=copy)

    def _pick(self, name: int) -> _Unit:
        """The waiting unit that fits an actor best, the oldest of equals."""
        best = 0
        if self._ready[0].overtaken < self._ahead:
            best = max(range(len(self._ready)), key=lambda i: (self._fit(self._ready[i], name), -i))
        for unit in self._ready[:best]:
            unit.overtaken += 1
        return self._ready.pop(best)

    def _fit(self, unit: _Unit, name: int) -> int:
        """Tokens that this actor's cache would save, less those that others' would."""
        owners = ((self._owners.get(prefix), tokens) for prefix, tokens in unit.sketch.items())
        return sum(tokens if owner == name else -tokens for owner, tokens in owners if owner is not None)

    def _to_double(self, name: int, now: float) -> _Unit | None:
        """A unit that another actor has, and that this one would probably finish first."""
        own = self._actors[name].unit_seconds or self._usual_seconds()
        if own is None:
            return None
        last: tuple[float, _Unit] | None = None
        for other, actor in self._actors.items():
            alone = [unit for unit in actor.units.values() if not unit.doubled]
            left = actor.seconds_left(now)
            if other != name and alone and left > _PAYS * own and (last is None or left > last[0]):
                last = (left, alone[-1])
        return None if last is None else last[1]

    def _usual_seconds(self) -> float | None:
        known = [actor.unit_seconds for actor in self._actors.values() if actor.unit_seconds is not None]
        return sum(known) / len(known) if known else None
