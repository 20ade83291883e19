"""Which tokens the rows of a forward may choose where they have a grammar: bits for each state that allows several.

On a GPU threads compute them while the model runs, and they are waited for when tokens are chosen. On a CPU the
threads of a forward take all cores and wait for each other, so bits are computed before the model runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLExecutor

from wedlm_core.decoding.allowed_tokens import FREE, WORD, AllowedTokens, only, words_of_vocabulary
from wedlm_core.engine.constrained.matching import AN_END, UNKNOWN, Constraint
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.fallback import Optimisation

Executor = LLExecutor | None
"""Threads that ask matchers; None to ask them in the engine's own."""


class _Asked(NamedTuple):
    """States of one sequence whose bits its matcher computes.

    Attributes:
        constraint: of the sequence.
        line: of the first of these states, in the table that is filled; the others follow it.
        places: the states, counted from the one where ``constraint.matcher`` stands, in order.
    """

    constraint: Constraint
    line: int
    places: tuple[int, ...]


class GrammarMasks:
    """The states of a forward's sequences with a grammar, one after the other; ``guard`` counts exceptions of matchers.

    Attributes:
        line_N: int64 ``[N]``, of each state, as in :class:`wedlm_core.decoding.allowed_tokens.AllowedTokens`.
        bits_UW: int32 ``[U, W]``, lines of bits of the states that allow several tokens.
    """

    def __init__(self, *, slots: int, vocab_size: int, eos_token_ids: tuple[int, ...], guard: Optimisation) -> None:
        self._slots, self._eos, self._guard = slots, eos_token_ids, guard
        self._words = words_of_vocabulary(vocab_size)
        self._facts: list[tuple[int, int, int, int]] = []
        self._states: list[int] = []
        self._asked: list[_Asked] = []
        self._line_count = 0
        self.line_N, self.bits_UW = np.full(1, FREE), np.empty((0, self._words), dtype=np.int32)

    def add(self, slot: int, constraint: Constraint, position: int) -> None:
        """Add a sequence: a state before its first draft, whose token is at ``position``, and one after each draft."""
        states = constraint.drafts.states
        self._facts.append((slot, len(self._states), len(states), position))
        self._states += states
        if unknown := constraint.unknown:
            self._asked.append(_Asked(constraint, self._line_count, unknown))
            self._line_count += len(unknown)

    def fill(self, executor: Executor) -> None:
        """Compute all bits; ``executor``: whose threads ask the matchers."""
        if not self._states:
            return
        state_N = np.array(self._states, dtype=np.int64)
        ends_N, unknown_N = state_N == AN_END, state_N == UNKNOWN
        several_ends = len(self._eos) > 1 and bool(ends_N.any())
        bits_UW = np.empty((self._line_count + several_ends, self._words), dtype=np.int32)
        self._compute_bits(bits_UW[: self._line_count], executor)
        line_N = only(state_N)
        line_N[unknown_N] = np.arange(self._line_count)
        if several_ends:
            bits_UW[self._line_count] = 0
            for token in self._eos:
                bits_UW.view(np.uint32)[self._line_count, token // WORD] |= 1 << (token % WORD)
        line_N[ends_N] = self._line_count if several_ends else only(self._eos[0])
        self.line_N, self.bits_UW = line_N, bits_UW

    def _compute_bits(self, bits_UW: np.ndarray, executor: Executor) -> None:
        """Write the bits of states; where a matcher raises, each row asks a new one, and fails if that raises too."""
        attempt = self._guard.attempt
        if attempt(_compute_bits, bits_UW, self._asked, executor):
            return
        for one in self._asked:
            if not attempt(_ask_again, bits_UW, one):
                one.constraint.failure = raised(self._guard)
                bits_UW[one.line : one.line + len(one.places)] = -1  # any token, as it won't be output

    def allowed(self, device: torch.device) -> AllowedTokens:
        """The allowed tokens on a device, once they are computed."""
        facts_3S = np.full((3, self._slots), -1, dtype=np.int64)
        if self._facts:
            slots_G, *facts = zip(*self._facts, strict=True)
            facts_3S[:, slots_G] = facts
        first_S, count_S, position_S = to_device(facts_3S, device)
        bits_UW, line_N = to_device(self.bits_UW, device), to_device(self.line_N, device)
        return AllowedTokens(bits_UW=bits_UW, line_N=line_N, first_S=first_S, count_S=count_S, position_S=position_S)


def raised(guard: Optimisation) -> str:
    """Why a row fails whose grammar raised, and raised with a new matcher."""
    return f"the grammar library failed ({guard.last})"


def _compute_bits(bits_UW: np.ndarray, asked: list[_Asked], executor: Executor) -> bool:
    """Write the bits of states; a sequence whose matcher reached a limit that it shares goes on with a new one."""
    _ask(bits_UW, asked, executor)
    for fresh in (False, True):
        asked = [one for one in asked if one.constraint.matcher.is_error()]
        for one in asked:
            one.constraint.renew(fresh)
        _ask(bits_UW, asked, executor)
    return True


def _ask_again(bits_UW: np.ndarray, asked: _Asked) -> bool:
    """Ask a new matcher for one row's bits."""
    asked.constraint.renew(fresh=True)
    _ask(bits_UW, [asked], None)
    return True


def _ask(bits_UW: np.ndarray, asked: list[_Asked], executor: Executor) -> None:
    """Ask each matcher for its first state, then for its second one, and so on; then take all back."""
    total, words = bits_UW.shape
    begin, size = bits_UW.ctypes.data, words * 4
    turn, going = 0, asked
    while going := [
        one
        for one in going
        if turn < len(one.places) and one.constraint.move(one.places[turn - 1] if turn else 0, one.places[turn])
    ]:
        if executor is not None:
            lines = [(one.constraint.matcher, one.line + turn) for one in going]
            executor.unsafe_compute_mask_ptr(lines, begin, size, total)
        else:
            for one in going:
                one.constraint.matcher.unsafe_compute_mask_ptr(begin + (one.line + turn) * size, size)
        turn += 1
    for one in asked:
        one.constraint.move(one.places[-1], 0)
