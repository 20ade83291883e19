"""How well choices that are made freely keep to one grammar, and whether to leave states open for them."""

from __future__ import annotations

__all__ = ["Obedience"]

_MEMORY = 0.998  # of what was known, when a choice is judged: sequences in step with each other, at a place where a
# grammar wants what the model does not, must not decide for the places that follow
_MOST_WITH_BITS = 0.9  # a refused choice costs its bits as well, which fewer threads compute at a time
_DOUBTS = 64  # choices that are taken to keep to the grammar before any was judged
_TRIED = 8  # every so many sequences choose freely where few should: so it is seen when choices keep to the grammar
_MEMORY_OF_NEXT = 0.98  # of what was known of next best tokens, when some are looked at
_LEAST_SETTLED = 1 / 16  # a look at the next best tokens takes about so much of the time that bits take


class Obedience:
    """Running shares of choices that needed bits, and of refused ones that a next best token settled; of one grammar.

    What is decided with them changes the time that choices take, never the choices.
    """

    def __init__(self) -> None:
        self._with_bits, self._judged = 0.0, float(_DOUBTS)
        self._settled = 1.0  # hopeful, so that it is tried
        self._asked, self._looked = 0, 0

    def note(self, *, needs_bits: bool) -> None:
        """Take in a choice that was made freely: it needs bits if it is refused, and the next best tokens are, too."""
        self._with_bits, self._judged = _MEMORY * self._with_bits + needs_bits, _MEMORY * self._judged + 1

    def note_next(self, *, settled: bool) -> None:
        """Take in whether one of the next best tokens was allowed where a choice was refused."""
        self._settled = _MEMORY_OF_NEXT * self._settled + (1 - _MEMORY_OF_NEXT) * settled

    def leaves_open(self) -> bool:
        """Whether the states of a sequence's forward are better left open than computed beforehand."""
        self._asked += 1
        return self._with_bits <= _MOST_WITH_BITS * self._judged or self._asked % _TRIED == 0

    def looks_at_next(self) -> bool:
        """Whether to look at the next best tokens of a refused choice, before bits are computed."""
        self._looked += 1
        return self._settled >= _LEAST_SETTLED or self._looked % _TRIED == 0
