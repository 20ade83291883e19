"""Allowed tokens: which tokens a grammar lets follow, as bits, and how rows of logits are restricted to them.

The bits of one state are a line of int32 words: bit ``i % 32`` of word ``i // 32`` says whether token i may come next.
A state that allows one token or all of them has no bits, its number says so. A sequence's forward has one state for
each draft and one before the first: its *states* follow each other in one table. The position of a row's token
says which state it is chosen in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kernels.cpu.rows_read import row_lines

WORD = 32
"""Tokens of a word."""
FREE = -1
"""Of a state in place of a line of bits: every token is allowed. Numbers below it allow one token, :func:`only`."""


def only(token: Any) -> Any:
    """The value in place of a line of bits where this token alone is allowed; and back from there to the token."""
    return -2 - token


def words_of_vocabulary(vocab_size: int) -> int:
    """Words of one state."""
    return -(-vocab_size // WORD)


@dataclass(frozen=True, kw_only=True)
class AllowedRows:
    """Restrictions of each of R rows.

    Attributes:
        bits_UW: int32 ``[U, W]``, lines of bits.
        line_R: int64 ``[R]``, the line of a row; :data:`FREE` where every token is allowed, :func:`only` where one is.
    """

    bits_UW: Tensor
    line_R: Tensor

    @property
    def is_certain(self) -> Tensor:
        """Bool: rows that may choose one token alone."""
        return self.line_R < FREE

    def take(self, index_N: Tensor) -> AllowedRows:
        """The rows of ``index_N`` (int64)."""
        return replace(self, line_R=self.line_R.index_select(0, index_N))


@dataclass(frozen=True, kw_only=True)
class AllowedTokens:
    """The states of one forward, by engine slot.

    Attributes:
        bits_UW: int32 ``[U, W]``, lines of bits.
        line_N: int64 ``[N]``, of each state as in :class:`AllowedRows`, one at least; a slot's follow each other.
        first_S: int64 ``[slots]``, the first state of a slot; -1 without a grammar.
        count_S: int64 ``[slots]``, states of a slot: its drafts and one.
        position_S: int64 ``[slots]``, the absolute position of the token that is chosen in a slot's first state.
    """

    bits_UW: Tensor
    line_N: Tensor
    first_S: Tensor
    count_S: Tensor
    position_S: Tensor

    @classmethod
    def free(cls, vocab_size: int, slots: int, device: torch.device) -> AllowedTokens:
        """Those of a forward whose slots have no grammar."""
        none_S = torch.full((slots,), FREE, dtype=torch.int64, device=device)
        bits_UW = torch.zeros(1, words_of_vocabulary(vocab_size), dtype=torch.int32, device=device)
        return cls(bits_UW=bits_UW, line_N=none_S[:1], first_S=none_S, count_S=none_S, position_S=none_S)

    def rows(self, slot_R: Tensor, position_R: Tensor) -> AllowedRows:
        """The lines of rows (int64 slots, and positions of the tokens that are chosen).

        The first mask proposes for the place after the last draft, so it is chosen in that draft's state. The tokens
        allowed after a mask's proposal are not known, so later masks may propose any token.
        """
        on_host = slot_R.device.type == "cpu"
        line_R = torch.from_numpy(self._lines(slot_R, position_R)) if on_host else self._line_tensor(slot_R, position_R)
        return AllowedRows(bits_UW=self.bits_UW, line_R=line_R)

    def _line_tensor(self, slot_R: Tensor, position_R: Tensor) -> Tensor:
        """The lines, on any device."""
        first_R = self.first_S.index_select(0, slot_R)
        state_R = position_R - self.position_S.index_select(0, slot_R)
        known_R = (first_R >= 0) & (state_R >= 0) & (state_R < self.count_S.index_select(0, slot_R))
        line_R = self.line_N.index_select(0, torch.where(known_R, first_R + state_R, 0))
        return torch.where(known_R, line_R, FREE)

    def _lines(self, slot_R: Tensor, position_R: Tensor) -> np.ndarray:
        """The same lines by a kernel, which takes less time for the rows of a forward on a CPU."""
        line_R = np.empty(slot_R.shape[0], dtype=np.int64)
        columns = (slot_R, position_R, self.first_S, self.count_S, self.position_S, self.line_N)
        row_lines(*(column.numpy() for column in columns), FREE, line_R)
        return line_R
