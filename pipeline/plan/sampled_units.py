"""Which units hold the rows that a report samples: those whose lowest hashes are the lowest. Plain logic.

The k rows of an output with the lowest hashes lie in the k units with the lowest of their lowest hashes: if a unit is
none of these, k other units have a lower row each. So the rows are found without looking at any others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from pipeline.commit.index import Index
from pipeline.commit.part_files import staged_place
from pipeline.types import CommitRecord, Place

__all__ = ["SampledUnits", "settled_samples"]


class SampledUnits:
    """The units with the lowest hashes among those that it is shown.

    Args:
        most: units that are kept.
        known: units that are committed already: their lowest hashes, and where their output rows are.
        derived_ids: whether row ids are derived from file and row number.
    """

    def __init__(self, most: int, known: Iterable[tuple[int, Place]] = (), *, derived_ids: bool = True) -> None:
        self._most, self._derived = most, derived_ids
        self._found = [(lowest, place) for lowest, place in known]

    def add(self, record: CommitRecord) -> None:
        """A unit that has been staged."""
        if record.lowest_hash is not None and self._most:
            self._found.append((record.lowest_hash, staged_place(record, derived_ids=self._derived)))
            if len(self._found) > 2 * self._most:
                self._found = self._lowest()

    def places(self) -> list[Place]:
        """Where their output rows are, from the lowest hash on."""
        return [place for _, place in self._lowest()]

    def _lowest(self) -> list[tuple[int, Place]]:
        return heapq.nsmallest(self._most, self._found, key=lambda pair: (pair[0], pair[1].key))


def settled_samples(index: Index, most: int, *, derived_ids: bool) -> list[tuple[int, Place]]:
    """Of the units that need no work in this run, those with the lowest hashes, as :class:`SampledUnits` takes them."""
    found = []
    for record in index.settled_lowest(most):
        assert record.lowest_hash is not None
        place = index.published.place(record.unit_id, record.attempt)
        found.append((record.lowest_hash, place or staged_place(record, derived_ids=derived_ids)))
    return found
