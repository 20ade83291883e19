"""Which tokens the rows of a forward may choose where a grammar says so: bits for each state of each sequence.

They are computed by threads: beside a GPU while the model runs, and waited for when tokens are chosen. On a CPU they
are computed before the model runs, for the threads of a forward take all cores and wait for each other, so each that is
kept waits for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llguidance import LLExecutor

from wedlm_core.decoding.allowed_tokens import WORD, words_of_vocabulary
from wedlm_core.grammar import AN_END, ANYTHING, UNKNOWN, Constraint

__all__ = ["Filler", "MaskLines", "filler", "mask_lines"]


def mask_lines(
    places: Iterable[tuple[int, Constraint, int]], slots: int, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> MaskLines:
    """The states of sequences, to be filled.

    Args:
        places: slot and constraint of each, and the position of the token that is chosen first.
        slots: of the engine.
        vocab_size: of the logits.
        eos_token_ids: tokens that end an output, below ``vocab_size``.
    """
    lines = MaskLines(slots=slots, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    for slot, constraint, position in places:
        lines.add(slot, constraint, position)
    return lines


class MaskLines:
    """The states of a forward's sequences with a grammar, line after line."""

    def __init__(self, *, slots: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.facts_3S = np.full((3, slots), -1, dtype=np.int64)  # first line, lines, position of the first
        self._asked: list[tuple[Constraint, int]] = []  # and the line of the state where its matcher stands
        self._states: list[int] = []
        self._eos = eos_token_ids
        self._words = words_of_vocabulary(vocab_size)
        self.bits_UW = np.empty((0, self._words), dtype=np.int32)

    @property
    def total(self) -> int:
        """States."""
        return len(self._states)

    def add(self, slot: int, constraint: Constraint, position: int) -> None:
        """Add a sequence: a state before its first draft, and one behind each."""
        first, states = self.total, constraint.drafts.states
        self.facts_3S[:, slot] = first, len(states), position
        if constraint.unknown:
            self._asked.append((constraint, first + len(states) - 1 - len(constraint.walk)))
        self._states += states

    def fill(self, executor: Any) -> None:
        """Compute all bits: matchers are asked for those that are not known.

        Args:
            executor: whose threads ask them; None to ask them in this one.
        """
        self.bits_UW = np.empty((self.total, self._words), dtype=np.int32)
        asked = self._asked
        self._ask(executor, asked)
        for fresh in (False, True):  # what reached a limit that it shares with others goes on by itself
            asked = [one for one in asked if one[0].matcher.is_error()]
            if asked:
                for constraint, _ in asked:
                    constraint.renew(fresh)
                self._ask(executor, asked)
        self._fill_known()

    def _fill_known(self) -> None:
        """Bits of states that allow one token, an end, or anything."""
        state_U = np.array(self._states, dtype=np.int64)
        lines_N = np.flatnonzero(state_U != UNKNOWN)
        self.bits_UW[lines_N] = np.where(state_U[lines_N] == ANYTHING, -1, 0)[:, None]
        one_N = lines_N[state_U[lines_N] >= 0]
        self.bits_UW[one_N, state_U[one_N] // WORD] = _bit(state_U[one_N])
        for token in self._eos:
            self.bits_UW[state_U == AN_END, token // WORD] |= _bit(np.int64(token))

    def _ask(self, executor: Any, asked: list[tuple[Constraint, int]]) -> None:
        if executor is None:
            for constraint, line in asked:
                self._ask_one(constraint, line)
            return
        place = self.bits_UW.ctypes.data, self._words * 4, self.total
        last = [one.unknown[-1] for one, _ in asked]
        single = [(one.matcher, line) for (one, line), end in zip(asked, last, strict=True) if not end]
        drafted = [
            (one.matcher, line, list(one.walk[:end])) for (one, line), end in zip(asked, last, strict=True) if end
        ]
        if single:
            executor.unsafe_compute_mask_ptr(single, *place)
        if drafted:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *place)

    def _ask_one(self, constraint: Constraint, line: int) -> None:
        """Ask for the unknown states alone: those of forced texts take several times as long."""
        matcher, walk, at = constraint.matcher, constraint.walk, 0
        size, begin = self._words * 4, self.bits_UW.ctypes.data
        for place in constraint.unknown:
            if place > at:
                matcher.consume_tokens(list(walk[at:place]))
                at = place
            if matcher.is_error():
                return
            matcher.unsafe_compute_mask_ptr(begin + (line + place) * size, size)
        if at:
            matcher.rollback(at)


def _bit(token: Any) -> Any:
    """The word in which a token's bit is set; int32 of the shape of ``token``."""
    return (np.int64(1) << (token % WORD)).astype(np.uint32).view(np.int32)


Filler = Callable[[MaskLines], Callable[[], None]]
"""Begins to fill lines; what it returns waits until they are filled."""


def filler(threads: int, *, background: bool) -> Filler:
    """Fills lines at once, as where the model runs on the same cores, or in the background."""
    executor = LLExecutor(threads) if threads > 1 or background else None
    if background:
        waiter = ThreadPoolExecutor(1, thread_name_prefix="grammar")  # so that the engine's thread need not wait
        return lambda lines: waiter.submit(lines.fill, executor).result

    def at_once(lines: MaskLines) -> Callable[[], None]:
        lines.fill(executor)
        return _no_wait

    return at_once


def _no_wait() -> None:
    """They are filled."""
