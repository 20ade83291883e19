"""Commits and proposals of a forward for sequences with a grammar, and their next drafts, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CHANGED", "DONE", "GOES_ON", "KEPT", "LEAD", "MASKS", "OUTCOME", "PAYING", "PLACE", "REFUSED", "SLOT", "Drafted",
    "Proposed",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]

DONE, REFUSED = range(2)
"""How commits were taken in: all of them; or the grammar refuses one."""

SLOT, _EMITTED, _COMMITTED, _ROWS, KEPT, _MOST, _PLANNED, PAYING, GOES_ON, PLACE = range(10)
LEAD, MASKS, OUTCOME, CHANGED = range(4)


class Proposed(NamedTuple):
    """Commits of G sequences, and proposals to them.

    Attributes:
        numbers_10G: int64: slots; tokens that are output, and all that were committed; rows of the forward; proposals
            of masks that may become drafts; drafts and masks at most; masks that are planned; drafts that history
            proposes in the place of masks, 0 where it does not; whether the sequence goes on; its place in the forward.
        token_DC: int64, the choices of the forward's rows.
        theirs_DP: int32, proposals from history to the sequences of the forward.
    """

    numbers_10G: Array
    token_DC: Array
    theirs_DP: Array

    @classmethod
    def first(cls, slots: Sequence[int], most: Sequence[int], masks: Sequence[int]) -> Proposed:
        """Of new sequences: nothing is committed, nothing proposed."""
        count = len(slots)
        lines: list[Sequence[int]] = [[0] * count] * 10
        lines[SLOT], lines[_MOST], lines[_PLANNED] = slots, most, masks
        lines[_ROWS] = lines[GOES_ON] = [1] * count
        lines[PLACE] = range(count)
        nothing = np.zeros((count, 1), dtype=np.int64)
        return cls(np.array(lines, dtype=np.int64), nothing, nothing.astype(np.int32))

    @property
    def slots(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[SLOT]

    @property
    def emitted(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[_EMITTED]

    @property
    def kept(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[KEPT]

    @property
    def places(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[PLACE]

    @property
    def goes_on(self) -> Array:
        """Bool ``[G]``."""
        return self.numbers_10G[GOES_ON] != 0


class Drafted(NamedTuple):
    """The next windows of G sequences.

    Attributes:
        numbers_4G: int64: drafts and masks; :data:`DONE` or :data:`REFUSED`; whether the window changes
            (:func:`wedlm_core.kernels.cpu.grammar_windows.note_windows`).
        token_GL: int64, drafts.
        source_GL: int8, of each.
    """

    numbers_4G: Array
    token_GL: Array
    source_GL: Array

    @classmethod
    def empty(cls, sequences: int, places: int) -> Drafted:
        """No drafts yet."""
        shape = sequences, places
        return cls(np.zeros((4, sequences), np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int8))

    @property
    def lead(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_4G[LEAD]

    @property
    def masks(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_4G[MASKS]

    @property
    def outcome(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_4G[OUTCOME]

    @property
    def changed(self) -> Array:
        """Bool ``[G]``."""
        return self.numbers_4G[CHANGED] != 0
