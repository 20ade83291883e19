"""How well choices that are made freely keep to one grammar, and whether to leave states open for them."""

from __future__ import annotations

__all__ = ["Obedience"]

_MEMORY = 0.98  # of what was known, when a choice is judged
_MOST_REFUSED = 0.8  # a refused choice costs its bits as well, which fewer threads compute at a time
_TRIED = 8  # every so many sequences choose freely where few should: so it is seen when choices keep to the grammar


class Obedience:
    """A running share of refused choices, kept by all sequences of a grammar.

    What is decided with it changes the time that choices take, never the choices.
    """

    def __init__(self) -> None:
        self._refused = 0.0
        self._asked = 0

    def note(self, refused: bool) -> None:
        """Take in the judgement of a choice that was made freely."""
        self._refused = _MEMORY * self._refused + (1 - _MEMORY) * refused

    def leaves_open(self) -> bool:
        """Whether the states of a sequence's forward are better left open than computed beforehand."""
        self._asked += 1
        return self._refused <= _MOST_REFUSED or self._asked % _TRIED == 0
