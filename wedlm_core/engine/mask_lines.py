"""Which tokens the rows of a forward may choose where a grammar says so: bits for each state that allows several.

They are computed by threads: beside a GPU while the model runs, and waited for when tokens are chosen. On a CPU the
threads of a forward take all cores and wait for each other, so each that is kept waits for all: there bits are computed
before the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLExecutor

from wedlm_core.decoding.allowed_tokens import FREE, WORD, only, words_of_vocabulary
from wedlm_core.fallback import Optimisation, Optimisations
from wedlm_core.grammar import AN_END, Constraint

__all__ = ["Executor", "Filler", "MaskLines", "executor_of", "filler", "mask_lines", "raised"]

Executor = LLExecutor | None
"""Threads that ask matchers; None where the engine's own asks them."""


def mask_lines(
    places: Iterable[tuple[int, Constraint, int]],
    slots: int,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
) -> MaskLines:
    """The states of sequences, to be filled.

    Args:
        places: slot and constraint of each, and the position of the token that is chosen first.
        slots: of the engine.
        vocab_size: of the logits.
        eos_token_ids: tokens that end an output, below ``vocab_size``.
    """
    guard = Optimisations().grammars
    lines = MaskLines(slots=slots, vocab_size=vocab_size, eos_token_ids=eos_token_ids, guard=guard)
    for slot, constraint, position in places:
        lines.add(slot, constraint, position)
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """States of one sequence whose bits its matcher is asked for.

    Attributes:
        constraint: of the sequence.
        line: of the state where ``constraint.matcher`` stands, in the table that is filled; negative where that is not
            asked for.
        places: the states, counted from there, in order.
    """

    constraint: Constraint
    line: int
    places: tuple[int, ...]


class MaskLines:
    """The states of a forward's sequences with a grammar, one after the other.

    Args:
        slots: of the engine.
        vocab_size: of the logits.
        eos_token_ids: tokens that end an output, below ``vocab_size``.
        guard: counts exceptions of matchers.

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
        self._places: list[int] = []  # states that have a line
        self._lines: list[int] = []  # of each of them
        self._line_count = 0
        self.line_N, self.bits_UW = np.full(1, FREE), np.empty((0, self._words), dtype=np.int32)

    @property
    def total(self) -> int:
        """States."""
        return len(self._states)

    def add(self, slot: int, constraint: Constraint, position: int) -> None:
        """Add a sequence: one state before its first draft, and one after each draft."""
        first, states = len(self._states), constraint.drafts.states
        self._facts.append((slot, first, len(states), position))
        self._states += states
        unknown = constraint.unknown
        if unknown:
            stands = first + len(states) - 1 - len(constraint.walk)
            # Bits of several states are computed along a walk, with a line for each state that it passes.
            line = self._line_count - (unknown[0] if len(unknown) == 1 else 0)
            self._asked.append(_Asked(constraint=constraint, line=line, places=unknown))
            self._places += [stands + place for place in unknown]
            self._lines += [line + place for place in unknown]
            self._line_count = line + unknown[-1] + 1

    def fill(self, executor: Executor) -> None:
        """Compute all bits: matchers are asked for those that are not known.

        Args:
            executor: whose threads ask them; None to ask them in this one.
        """
        if not self._states:
            return
        state_N = np.array(self._states, dtype=np.int64)
        ends_N = state_N == AN_END
        several_ends = len(self._eos) > 1 and bool(ends_N.any())
        bits_UW = np.empty((self._line_count + several_ends, self._words), dtype=np.int32)
        if self._asked:
            self._compute_bits(bits_UW[: self._line_count], executor)
        line_N = np.where(state_N >= 0, only(state_N), FREE)
        line_N[self._places] = self._lines
        if several_ends:
            bits_UW[self._line_count] = 0
            for token in self._eos:
                bits_UW[self._line_count, token // WORD] |= _bit(np.int64(token))
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
                bits_UW[[one.line + place for place in one.places]] = -1  # any token, as it won't be output

    def facts(self) -> np.ndarray:
        """int64 ``[3, slots]``: a slot's first state, -1 where it has none; its states; the position of the first."""
        facts_3S = np.full((3, self._slots), -1, dtype=np.int64)
        if self._facts:
            slots_G, *facts = zip(*self._facts, strict=True)
            facts_3S[:, slots_G] = facts
        return facts_3S


def raised(guard: Optimisation) -> str:
    """Why a row fails whose grammar raised, and raised with a new matcher."""
    return f"the grammar library failed ({guard.last})"


def _compute_bits(bits_UW: np.ndarray, asked: Iterable[_Asked], executor: Executor) -> bool:
    """Write the bits of states, as their matchers say; a matcher that reached a limit shared with others goes on alone.

    Args:
        bits_UW: int32, written.
        asked: the states.
        executor: as for :meth:`MaskLines.fill`.
    """
    asked = list(asked)
    _ask(bits_UW, asked, executor)
    for fresh in (False, True):
        asked = [one for one in asked if one.constraint.matcher.is_error()]
        if asked:
            for one in asked:
                one.constraint.renew(fresh)
            _ask(bits_UW, asked, executor)
    return True


def _ask_again(bits_UW: np.ndarray, asked: _Asked) -> bool:
    """Ask a new matcher for one row's bits."""
    asked.constraint.renew(fresh=True)
    _ask_one(bits_UW, asked)
    return True


def _ask(bits_UW: np.ndarray, asked: list[_Asked], executor: Executor) -> None:
    if executor is None:
        for one in asked:
            _ask_one(bits_UW, one)
        return
    total, words = bits_UW.shape
    place = bits_UW.ctypes.data, words * 4, total
    single = [one for one in asked if len(one.places) == 1]
    several = [
        (one.constraint.matcher, one.line, list(one.constraint.walk[: one.places[-1]]))
        for one in asked
        if len(one.places) > 1
    ]
    reached = [one for one in single if _walk(one.constraint, 0, one.places[0])]
    if reached:
        executor.unsafe_compute_mask_ptr(
            [(one.constraint.matcher, one.line + one.places[0]) for one in reached], *place
        )
        for one in reached:
            _walk_back(one.constraint, one.places[0])
    if several:
        executor.unsafe_compute_mask_ptr_with_draft_token(several, *place)


def _ask_one(bits_UW: np.ndarray, asked: _Asked) -> None:
    """Ask for the unknown states alone: those of forced texts take several times as long."""
    matcher, at = asked.constraint.matcher, 0
    size, begin = bits_UW.shape[1] * 4, bits_UW.ctypes.data
    for place in asked.places:
        if not _walk(asked.constraint, at, place):
            return
        at = place
        matcher.unsafe_compute_mask_ptr(begin + (asked.line + place) * size, size)
    _walk_back(asked.constraint, at)


def _walk(constraint: Constraint, begin: int, end: int) -> bool:
    """Take a matcher along drafts; False if it is in an error."""
    if end > begin:
        constraint.matcher.consume_tokens(list(constraint.walk[begin:end]))
    return not constraint.matcher.is_error()


def _walk_back(constraint: Constraint, steps: int) -> None:
    if steps and not constraint.matcher.is_error():
        constraint.matcher.rollback(steps)


def _bit(token: Any) -> Any:
    """The word of a token's bit; int32 of the shape of ``token``."""
    return (np.int64(1) << (token % WORD)).astype(np.uint32).view(np.int32)


Filler = Callable[[MaskLines], Callable[[], None]]
"""Begins to fill lines; its result waits until they are filled."""


def executor_of(threads: int, *, background: bool) -> Executor:
    """The pool of so many threads that asks matchers, in addition to the engine's thread or in its place."""
    return LLExecutor(threads) if threads > 1 or background else None


def filler(executor: Executor, *, background: bool) -> Filler:
    """Fills lines at once, as where the model runs on the same cores, or in the background."""
    if background:
        waiter = ThreadPoolExecutor(1, thread_name_prefix="grammar")  # so that the engine's thread need not wait
        return lambda lines: waiter.submit(lines.fill, executor).result

    def at_once(lines: MaskLines) -> Callable[[], None]:
        lines.fill(executor)
        return _no_wait

    return at_once


def _no_wait() -> None:
    """They are filled."""
