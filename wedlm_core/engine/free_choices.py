"""Choices that were made freely, held against the grammars of their sequences.

A state that is left open (:mod:`wedlm_core.decoding.allowed_tokens`) costs a look at the one token that was chosen, in
place of one at the whole vocabulary. Drafts were allowed when they were drafted, so a sequence's rows are walked up to
the first choice that is not its draft: what stands behind it is not committed. If the grammar refuses that choice it
is made again with bits, and if then it is the draft after all, the walk goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedRows, Refused, words_of_vocabulary
from wedlm_core.engine.mask_lines import Asked, Executor, compute_bits
from wedlm_core.grammar import UNKNOWN, Constraint

__all__ = ["FreeChoices", "FreeSequence"]


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
        self._again = False  # whether it was chosen again, with bits

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
                constraint.obedience.note(self._again)
                if self._again:
                    return place - begin
            self._place = place + 1 if right else len(drafts.states)  # behind a wrong draft no choice counts
            self._again = False
        return None

    def asked(self, line: int) -> Asked:
        """Asks for the bits of the state whose choice was refused, to be written to this line."""
        place = self._place - (len(self._constraint.drafts.tokens) - len(self._constraint.walk))
        return Asked(constraint=self._constraint, line=line - place, places=(place,))


class FreeChoices:
    """The sequences of one forward whose states were left open.

    Args:
        sequences: by slot.
        vocab_size: of the logits.
        executor: whose threads compute bits; None to compute them in this one.
    """

    def __init__(self, sequences: Mapping[int, FreeSequence], vocab_size: int, executor: Executor) -> None:
        self._sequences, self._executor = sequences, executor
        self._words = words_of_vocabulary(vocab_size)

    def __call__(self, slot_R: Tensor, position_R: Tensor, token_R: Tensor) -> Refused | None:
        """The rows to choose again (:data:`wedlm_core.decoding.allowed_tokens.Refusals`); rows of a slot adjoin."""
        slots, positions, tokens = slot_R.tolist(), position_R.tolist(), token_R.tolist()
        slot_rows = slot_R.numpy()
        begins = [0, *(np.flatnonzero(slot_rows[1:] != slot_rows[:-1]) + 1).tolist()]
        asked: list[Asked] = []
        rows = list[int]()
        for begin, end in zip(begins, [*begins[1:], len(slots)], strict=True):
            sequence = self._sequences.get(slots[begin])
            if sequence is None:
                continue
            found = sequence.refused(positions[begin] - sequence.position, tokens[begin:end])
            if found is None:
                continue
            rows.append(begin + found)
            asked.append(sequence.asked(len(asked)))
        if not asked:
            return None
        bits_NW = np.empty((len(asked), self._words), dtype=np.int32)
        compute_bits(bits_NW, asked, self._executor)
        allowed = AllowedRows(bits_UW=torch.from_numpy(bits_NW), line_R=torch.arange(len(asked)))
        return Refused(row_N=torch.tensor(rows), allowed=allowed)
