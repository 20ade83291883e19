"""The units that wait for an actor, and which of them goes to whom. Plain logic; knows no Ray.

An actor gets the unit that fits its prefix cache best. With thousands of actors, thousands of units wait; so only some
are compared: the oldest ones, and the oldest of those that begin like the actor's last units.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

OLDEST = 32
"""Units that are compared for their age."""
_ALIKE = 32
"""Most prefixes of an actor's last units that are used to look up units."""
_INDEXED = 8
"""The prefixes of a unit that it can be looked up by: those whose caching saves most."""


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A unit: how many units had been given when it came, and how many waited before it."""

    histogram: Mapping[int, int]
    given: int
    before: int
    age: int
    """Smaller is older; a unit that was put first is older than all others."""


class WaitingUnits:
    """A queue whose order is bent for the sake of prefix caches.

    Args:
        max_overtakes: a unit that later ones overtook so often goes next.
    """

    def __init__(self, max_overtakes: int) -> None:
        self._max_overtakes = max_overtakes
        self._units: OrderedDict[str, _Waiting] = OrderedDict()
        self._alike: dict[int, OrderedDict[str, None]] = {}
        """Prefix -> the waiting units that have it, oldest first."""
        self._last: dict[int, deque[int]] = {}
        """Actor -> prefixes of its last units."""
        self._given = 0
        self._newest = self._oldest = 0

    def __len__(self) -> int:
        return len(self._units)

    def put(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        """Add a unit after all others. ``histogram``: see :meth:`Dispatcher.offer`."""
        self._newest += 1
        self._units[unit_id] = _Waiting(
            histogram=histogram, given=self._given, before=len(self._units), age=self._newest
        )  # fmt: skip
        for prefix in _indexed(histogram):
            self._alike.setdefault(prefix, OrderedDict())[unit_id] = None

    def put_first(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        """Put a unit in front of all others; it goes next, whatever its prefixes are."""
        self._oldest -= 1
        self._units[unit_id] = _Waiting(
            histogram=histogram, given=self._given - self._max_overtakes, before=0, age=self._oldest
        )  # fmt: skip
        self._units.move_to_end(unit_id, last=False)
        for prefix in _indexed(histogram):
            self._alike.setdefault(prefix, OrderedDict())[unit_id] = None
            self._alike[prefix].move_to_end(unit_id, last=False)

    def remove(self, unit_id: str) -> None:
        """Take a certain unit out, if it is here."""
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return
        for prefix in _indexed(unit.histogram):
            del self._alike[prefix][unit_id]
            if not self._alike[prefix]:
                del self._alike[prefix]

    def take(self, actor: int, fit: Callable[[Mapping[int, int], int], int]) -> str:
        """Take out the unit for an actor: the best fit of those compared, the oldest of equals.

        Args:
            actor: who gets it.
            fit: of a unit's histogram for an actor; larger is better.
        """
        first, head = next(iter(self._units.items()))
        best = first
        if self._given - head.given - head.before < self._max_overtakes:
            units = self._units
            best = max(self._compared(actor), key=lambda name: (fit(units[name].histogram, actor), -units[name].age))
        histogram = self._units[best].histogram
        self.remove(best)
        self._given += 1
        self._last.setdefault(actor, deque(maxlen=_ALIKE)).extend(_indexed(histogram))
        return best

    def forget(self, actor: int) -> None:
        """An actor is gone, and its cache with it."""
        self._last.pop(actor, None)

    def _compared(self, actor: int) -> set[str]:
        alike = (self._alike.get(prefix) for prefix in self._last.get(actor, ()))
        return {*islice(self._units, OLDEST), *(next(iter(units)) for units in alike if units)}


def _indexed(histogram: Mapping[int, int]) -> list[int]:
    return list(islice(histogram, _INDEXED))  # the largest entries come first
