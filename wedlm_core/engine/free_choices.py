"""Choices that were made freely, held against the grammars of their sequences.

A state that is left open (:mod:`wedlm_core.decoding.allowed_tokens`) costs a look at the one token that was chosen, in
place of one at the whole vocabulary. Drafts were allowed when they were drafted, so a sequence's rows are walked up to
the first choice that is not its draft: what stands behind it is not committed. If the grammar refuses that choice it
is made again, and if then it is the draft after all, the walk goes on. What is chosen then is the best token that the
grammar allows: one of the next best few, if it allows any of these; else bits say which.

Where this raises, bits say for all rows what they may choose, as if nothing had been left open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedRows, AllowedTokens, Ranking, Refused, only
from wedlm_core.engine.mask_lines import Asked, Executor, compute_bits
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import UNKNOWN, Constraint

__all__ = ["FreeChoices", "FreeSequence"]

_NOTHING = Refused(
    row_N=torch.empty(0, dtype=torch.int64),
    allowed=AllowedRows(bits_UW=torch.empty((0, 0), dtype=torch.int32), line_R=torch.empty(0, dtype=torch.int64)),
)
_NEXT = 16  # tokens that are looked at: each takes about a microsecond, bits of a large vocabulary up to a thousand


class FreeSequence:
    """How far the choices of one sequence have been judged in this forward.

    Args:
        constraint: with the drafts of the forward.
        position: absolute position of the token that is chosen in its first state.
    """

    __slots__ = ("_again", "_constraint", "_place", "position")

    def __init__(self, constraint: Constraint, position: int) -> None:
        self.position = position
        self._constraint = constraint
        self._place = 0  # the state whose choice is judged next
        self._again = False  # whether it was chosen again

    def refused(self, begin: int, token_N: list[int]) -> int | None:
        """The place of the first choice that the grammar refuses; None if there is none, or they go on elsewhere.

        Args:
            begin: state of the first choice.
            token_N: choices in order.
        """
        constraint, drafts = self._constraint, self._constraint.drafts
        while self._place < len(drafts.states) and 0 <= self._place - begin < len(token_N):
            place, token = self._place, token_N[self._place - begin]
            right = place < len(drafts.tokens) and token == drafts.tokens[place]
            if drafts.states[place] == UNKNOWN and not self._again:
                self._again = not right and not constraint.allows(place, token)
                if self._again:
                    return place - begin
                constraint.obedience.note(needs_bits=False)
            self._place = place + 1 if right else len(drafts.states)  # behind a wrong draft no choice counts
            self._again = False
        return None

    def looks_at_next(self) -> bool:
        """Whether to look at what the refused row would choose next, before asking for bits."""
        return self._constraint.obedience.looks_at_next()

    def settle(self, token_K: list[int]) -> int | None:
        """The first of these tokens that the grammar allows in place of the refused choice; None if it allows none."""
        found = next((token for token in token_K if token >= 0 and self._constraint.allows(self._place, token)), None)
        obedience = self._constraint.obedience
        obedience.note_next(settled=found is not None)
        if found is not None:
            obedience.note(needs_bits=False)
        return found

    def asked(self, line: int) -> Asked:
        """Asks for the bits of the state whose choice was refused, to be written to this line."""
        self._constraint.obedience.note(needs_bits=True)
        place = self._place - (len(self._constraint.drafts.tokens) - len(self._constraint.walk))
        return Asked(constraint=self._constraint, line=line - place, places=(place,))


class FreeChoices:
    """The sequences of one forward whose states were left open.

    Args:
        sequences: by slot.
        bits_SW: int32, overwritten: a line for each sequence. Who makes these for one forward after the other keeps it:
            memory that is new takes as long to touch as bits take to compute.
        executor: whose threads compute bits; None to compute them in this one.
        judging: guards the look at choices.
        closed: gives the same states with their bits, for rows that are chosen again where that look raises.
        ranks: whether to look at the next best tokens of a refused choice first.
    """

    def __init__(
        self, sequences: Mapping[int, FreeSequence], bits_SW: np.ndarray, executor: Executor, *,
        judging: Optimisation, closed: Callable[[], AllowedTokens], ranks: bool = False,
    ) -> None:  # fmt: skip
        self._sequences, self._bits_SW, self._executor, self._ranks = sequences, bits_SW, executor, ranks
        self._judging, self._closed = judging, closed
        self._bits: AllowedTokens | None = None
        self._restricted = set[tuple[int, int]]()  # slots and positions of rows that bits were given for

    def __call__(
        self, slot_R: Tensor, position_R: Tensor, token_R: Tensor, ranking: Ranking | None = None
    ) -> Refused | None:
        """The rows to choose again (:data:`wedlm_core.decoding.allowed_tokens.Refusals`); rows of a slot adjoin."""
        found = self._judging.attempt(self._judged, slot_R, position_R, token_R, ranking)
        if found is None:
            found = self._restrict(slot_R, position_R)
        return found if found.row_N.shape[0] else None

    def _restrict(self, slot_R: Tensor, position_R: Tensor) -> Refused:
        """All rows of states that were left open, each once, with their bits."""
        self._bits = self._bits or self._closed()
        allowed, given = self._bits.rows(slot_R, position_R), self._restricted
        places = list(zip(slot_R.tolist(), position_R.tolist(), strict=True))
        row_N = torch.tensor(
            [row for row, line in enumerate(allowed.line_R.tolist()) if line >= 0 and places[row] not in given],
            dtype=torch.int64,
        )
        given.update(places)
        return Refused(row_N=row_N, allowed=allowed.take(row_N))

    def _judged(self, slot_R: Tensor, position_R: Tensor, token_R: Tensor, ranking: Ranking | None) -> Refused:
        """The rows whose choices grammars refuse, and what they may choose instead."""
        refused = self._refused(slot_R, position_R, token_R)
        if not refused:
            return _NOTHING
        lines = dict[int, int]() if ranking is None or not self._ranks else _settled(refused, ranking)
        asked: list[Asked] = []
        for row, sequence in refused.items():
            if row not in lines:
                lines[row] = len(asked)
                asked.append(sequence.asked(len(asked)))
        bits_UW = self._bits_SW[: len(asked)]
        if asked:
            compute_bits(bits_UW, asked, self._executor)
        line_N = torch.tensor([lines[row] for row in refused])
        allowed = AllowedRows(bits_UW=torch.from_numpy(bits_UW), line_R=line_N)
        return Refused(row_N=torch.tensor([*refused]), allowed=allowed)

    def _refused(self, slot_R: Tensor, position_R: Tensor, token_R: Tensor) -> dict[int, FreeSequence]:
        """The rows whose choices grammars refuse, and their sequences."""
        slots, positions, tokens = slot_R.tolist(), position_R.tolist(), token_R.tolist()
        slot_rows = slot_R.numpy()
        begins = [0, *(np.flatnonzero(slot_rows[1:] != slot_rows[:-1]) + 1).tolist()]
        refused = dict[int, FreeSequence]()
        for begin, end in zip(begins, [*begins[1:], len(slots)], strict=True):
            sequence = self._sequences.get(slots[begin])
            if sequence is None:
                continue
            found = sequence.refused(positions[begin] - sequence.position, tokens[begin:end])
            if found is not None:
                refused[begin + found] = sequence
        return refused


def _settled(refused: Mapping[int, FreeSequence], ranking: Ranking) -> dict[int, int]:
    """The only token that a row may choose, in place of a line of bits, where one of its next best is allowed."""
    looking = [row for row, sequence in refused.items() if sequence.looks_at_next()]
    if not looking:
        return {}
    ranks = ranking(torch.tensor(looking), 1 + _NEXT)[:, 1:].tolist()  # the first is what was refused
    found = {row: refused[row].settle(token_K) for row, token_K in zip(looking, ranks, strict=True)}
    return {row: only(token) for row, token in found.items() if token is not None}
