"""How a decoder is told to choose tokens at the end of its forward, and what it chose."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Draw", "Drawn", "SlotColumns"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotColumns:
    """Of each engine slot: float32 temperature, int64 seed, bool whether mask and padding are never chosen."""

    temperature_S: Tensor
    seed_S: Tensor
    suppress_S: Tensor


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How tokens of R rows of a forward are chosen.

    Attributes:
        row_R, slot_R, position_R: int64, the row, ascending, its engine slot, the position of the token that is chosen.
        columns: of the slots.
        bits_UW, line_R: int32 and int64, the tokens that a grammar allows (``AllowedRows``); None where none has one.
        mask_token_id: id that suppressing slots never choose.
        vocab_limit: ids from here on are padding, which they never choose either.
    """

    row_R: Tensor
    slot_R: Tensor
    position_R: Tensor
    columns: SlotColumns
    bits_UW: Tensor | None = None
    line_R: Tensor | None = None
    mask_token_id: int
    vocab_limit: int


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Of R rows: int64 token, float32 entropy and log-probability in nats, float32 logits ``[R, V]``.

    Scratch memory: valid until the next forward.
    """

    token_R: Tensor
    entropy_R: Tensor
    logprob_R: Tensor
    logits_RV: Tensor
