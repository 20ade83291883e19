"""A decoder's orders for a forward and the choice of tokens at its end, and its choices.

Records of addresses follow from these, so tensors are handed over whole, with how much of them counts: to cut a tensor
takes as long as a kernel does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotColumns:
    """Of each engine slot: float32 temperature, filters (float32, int64, float32), int64 seed.

    And bool, whether it never chooses mask and padding; int64, how many likely tokens it reports.
    """

    temperature_S: Tensor
    min_p_S: Tensor
    top_k_S: Tensor
    top_p_S: Tensor
    seed_S: Tensor
    suppress_S: Tensor
    tops_S: Tensor


class StepRows(NamedTuple):
    """The rows of a forward, and the sequences that they belong to; int64.

    Attributes:
        row_3T: ``[3, T']`` token, logical position and KV slot of each row.
        total: T, rows that count.
        span_6S: ``[6, S']`` first row, rows, cached KV entries, slot, prefill and decode rows of each sequence.
        sequences: S, sequences that count.
        page_N: page tables ``[S, page_columns]`` after each other, and more.
        page_columns: pages of each.
        longest: KV entries of the longest sequence, its rows of this forward among them.
    """

    row_3T: Tensor
    total: int
    span_6S: Tensor
    sequences: int
    page_N: Tensor
    page_columns: int
    longest: int


class StepPicks(NamedTuple):
    """The rows that need a token; int64.

    Attributes:
        pick_3R: ``[3, R']`` row of the forward, ascending, its engine slot and the position of the token to choose.
        total: R, rows that count.
    """

    pick_3R: Tensor
    total: int


class Advance(NamedTuple):
    """How windows advance after the choice: see :data:`wedlm_core.kernels.cpu.records.ADVANCE`; addresses, and sizes.

    Attributes:
        decoding: sequences.
        places: of each in the outcome.
        states: the record of the slots.
        mask: id of the mask.
        outcome: counts, flags, token, nats and early.
    """

    decoding: int
    places: int
    states: int
    mask: int
    outcome: tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """Tokens that grammars allow, by engine slot: see :class:`wedlm_core.decoding.allowed_tokens.AllowedTokens`.

    Attributes:
        bits_UW: int32.
        line_N, first_S, count_S, position_S: int64.
    """

    bits_UW: Tensor
    line_N: Tensor
    first_S: Tensor
    count_S: Tensor
    position_S: Tensor


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How tokens of R rows of a forward are chosen.

    Attributes:
        picks: the rows.
        columns: of the slots.
        adjustments: record of the adjustments of slots; None where no row has any.
        allowed: the tokens that grammars allow; None where no row has one.
        most_logits: rows that may choose among several tokens, and need logits, at most.
        mask_token_id: id that suppressing slots never choose.
        vocab_limit: ids from here on are padding, which they never choose either.
        most: likely tokens that rows report.
        advance: right after the choice.
    """

    picks: StepPicks
    columns: SlotColumns
    adjustments: np.ndarray | None = None
    allowed: States | None = None
    most_logits: int
    mask_token_id: int
    vocab_limit: int
    most: int = 0
    advance: Advance


class Drawn:
    """The choices of rows, up to the number that there is room for; scratch memory, overwritten by the next forward.

    Attributes:
        token_R, entropy_R, logprob_R: int64, and float32 nats.
        line_R: int64, the allowed tokens of each row (``AllowedRows.line_R``), if there are grammars.
        logit_pick_R: int64, the place of each row of logits among these; rows with a single allowed token have no
            logits.
        logit_rows: rows of logits.
        logits_N: float32, they after each other, and more.
        vocab: logits of a row.
        top_token_RK, top_logprob_RK: int64, and float32 nats: the likely tokens of the rows.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        self.token_R = torch.empty(rows, dtype=torch.int64)
        self.entropy_R, self.logprob_R = torch.empty(rows), torch.empty(rows)
        self.line_R, self.logit_pick_R = torch.empty(2, rows, dtype=torch.int64)
        self.top_token_RK, self.top_logprob_RK = torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 0)
        self.logit_rows, self.logits_N, self.vocab = 0, torch.empty(0), vocab
