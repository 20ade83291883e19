"""The queue of units that wait for an actor. Plain logic; knows no Ray.

Units with long rows go first: for each size class, a unit moves forward by a fixed number of places. An actor gets,
of the first units, the unit that fits its prefix cache best. Thousands of units may wait, so only some are compared:
the first ones, and the oldest unit for each prefix of the actor's last units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

FIRST = 32
"""Units that are compared for their place in the queue."""
_ALIKE = 32
"""Most prefixes of an actor's last units that are used to look up units."""
_INDEXED = 8
"""Prefixes of a unit that are indexed: those whose caching saves most."""


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A waiting unit.

    Attributes:
        histogram: see :meth:`Dispatcher.offer`.
        place: sort key, smallest first: whether the unit was not put first, its number less the number of units that
            it may overtake, and its number.
        given: units that had been given when it got its place.
        before: units that waited before it then.
    """

    histogram: Mapping[int, int]
    place: tuple[bool, int, int]
    given: int
    before: int


class WaitingUnits:
    """A queue that prefers long rows, and units whose prefixes the actor has cached.

    Args:
        max_overtakes: the first unit goes next if others overtook it so often. Also the number of older units, one
            size class smaller, that a unit may overtake.
    """

    def __init__(self, max_overtakes: int) -> None:
        self._max_overtakes = max_overtakes
        self._units: dict[str, _Waiting] = {}
        self._places: list[tuple[tuple[bool, int, int], str]] = []
        """All units, sorted."""
        self._alike: dict[int, OrderedDict[str, None]] = {}
        """Prefix -> the waiting units that have it, oldest first."""
        self._last: dict[int, deque[int]] = {}
        """Actor -> prefixes of its last units."""
        self._given = 0
        self._newest = self._oldest = 0

    def __len__(self) -> int:
        return len(self._units)

    def put(self, unit_id: str, histogram: Mapping[int, int], size: int = 0) -> None:
        """Add a unit after all others of its size class. ``histogram``: see :meth:`Dispatcher.offer`."""
        self._newest += 1
        self._place(unit_id, histogram, self._sized((True, 0, self._newest), size), self._given)
        for prefix in _indexed(histogram):
            self._alike.setdefault(prefix, OrderedDict())[unit_id] = None

    def put_first(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        """Put a unit in front of all others; it goes next, whatever its prefixes are."""
        self._oldest -= 1
        self._place(unit_id, histogram, (False, self._oldest, self._oldest), self._given - self._max_overtakes)
        for prefix in _indexed(histogram):
            self._alike.setdefault(prefix, OrderedDict())[unit_id] = None
            self._alike[prefix].move_to_end(unit_id, last=False)

    def sort(self, size: Callable[[str], int]) -> None:
        """Renew the size classes of all units but those that were put first."""
        units = self._units.items()
        self._places = sorted((self._sized(unit.place, size(unit_id)), unit_id) for unit_id, unit in units)
        for before, (place, unit_id) in enumerate(self._places):
            unit = self._units[unit_id]
            given = self._given if place[0] else unit.given
            self._units[unit_id] = replace(unit, place=place, given=given, before=before)

    def remove(self, unit_id: str) -> None:
        """Remove a unit, if it waits here."""
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return
        del self._places[bisect_left(self._places, (unit.place, unit_id))]
        for prefix in _indexed(unit.histogram):
            del self._alike[prefix][unit_id]
            if not self._alike[prefix]:
                del self._alike[prefix]

    def take(self, actor: int, fit: Callable[[Mapping[int, int], int], int]) -> str:
        """Remove and return the next unit of an actor: the best fit of the compared units, the first of equal ones.

        Args:
            actor: the actor that gets the unit.
            fit: rates a unit's histogram for an actor; larger is better.
        """
        units = self._units
        best = self._places[0][1]
        head = units[best]
        if self._given - head.given - head.before < self._max_overtakes:
            best = min(self._compared(actor), key=lambda name: (-fit(units[name].histogram, actor), units[name].place))
        histogram = units[best].histogram
        self.remove(best)
        self._given += 1
        self._last.setdefault(actor, deque(maxlen=_ALIKE)).extend(_indexed(histogram))
        return best

    def forget(self, actor: int) -> None:
        """Forget an actor that is gone with its cache."""
        self._last.pop(actor, None)

    def _compared(self, actor: int) -> set[str]:
        alike = (self._alike.get(prefix) for prefix in self._last.get(actor, ()))
        first = (unit_id for _, unit_id in self._places[:FIRST])
        return {*first, *(next(iter(units)) for units in alike if units)}

    def _sized(self, place: tuple[bool, int, int], size: int) -> tuple[bool, int, int]:
        """The place of a unit, moved forward for its size class."""
        later, _, number = place
        return (later, number - self._max_overtakes * size, number) if later else place

    def _place(self, unit_id: str, histogram: Mapping[int, int], place: tuple[bool, int, int], given: int) -> None:
        before = bisect_left(self._places, (place, unit_id))
        self._units[unit_id] = _Waiting(histogram=histogram, place=place, given=given, before=before)
        self._places.insert(before, (place, unit_id))


def _indexed(histogram: Mapping[int, int]) -> list[int]:
    return list(islice(histogram, _INDEXED))  # the largest entries come first
