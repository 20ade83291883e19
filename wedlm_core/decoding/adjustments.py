"""Adjustments: what changes a row's logits before the temperature: bans, biases and penalties, one record each.

An adjustment is a field of :class:`wedlm_core.types.SamplingParams`, a record in :data:`ADJUSTMENTS`, and its rule for
one row in the oracle's ``adjusted``. Only rows of sequences that use one are looked at (``sampling.with_filters``).

What a row's sequence has generated *before the row* is a stretch of ``tokens_SL``: the prompt, what is committed, and
the drafts of this forward, in order. So the row of draft j counts the drafts up to j, and what it decides is what
autoregressive decoding decides after the same tokens. Masks count what is known; they only propose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["ADJUSTMENTS", "LISTS", "AdjustedRows", "Adjustment", "AdjustmentTables", "adjust_logits"]

_HISTORY_CELLS = 1 << 22  # tokens that are counted at once: rows times positions


@dataclass(frozen=True, kw_only=True)
class AdjustmentTables:
    """What adjustments read of S slots, on the device.

    Attributes:
        columns: numbers by slot, ``[S]``, under the fields' names.
        lists: distinct lists that requests bring, ``[U, ...]``, under the names of :data:`LISTS`: of token ids, -1
            behind the last (``bad_words``: before the first of each word), or of values.
        list_S: int64 ``[S]`` each, the row of a slot's list.
        uses_S: bool, slots with any adjustment.
        prompt_S: int64, tokens of the prompt.
        known_S: int64, tokens of the sequence that are known: prompt, committed, and this forward's drafts.
        tokens_SL: int64, those tokens by position; any value behind them.
    """

    columns: Mapping[str, Tensor]
    lists: Mapping[str, Tensor]
    list_S: Mapping[str, Tensor]
    uses_S: Tensor
    prompt_S: Tensor
    known_S: Tensor
    tokens_SL: Tensor


@dataclass(frozen=True, kw_only=True)
class AdjustedRows:
    """R rows of logits whose sequences may use adjustments.

    Attributes:
        tables: by slot.
        slot_R, position_R: int64, a row's slot and the position of the token that it chooses.
        uses: the adjustments that any row uses, in order.
        longest: tokens known of any of the sequences, at most.
    """

    tables: AdjustmentTables
    slot_R: Tensor
    position_R: Tensor
    uses: Sequence[Adjustment]
    longest: int

    def take(self, index_N: Tensor) -> AdjustedRows:
        """The rows of ``index_N`` (int64)."""
        return replace(
            self, slot_R=self.slot_R.index_select(0, index_N), position_R=self.position_R.index_select(0, index_N)
        )

    @property
    def flags(self) -> Tensor:
        """Bool ``[R]``: rows that an adjustment applies to."""
        return self.tables.uses_S.index_select(0, self.slot_R)

    def value(self, field: str) -> Tensor:
        """A number of each row's request, ``[R]``."""
        return self.tables.columns[field].index_select(0, self.slot_R)

    def list_of(self, name: str) -> Tensor:
        """A list of each row's request, ``[R, ...]``."""
        return self.tables.lists[name].index_select(0, self.tables.list_S[name].index_select(0, self.slot_R))

    @cached_property
    def prompts(self) -> Tensor:
        """int64 ``[R]``: tokens of the prompt."""
        return self.tables.prompt_S.index_select(0, self.slot_R)

    @cached_property
    def known(self) -> Tensor:
        """int64 ``[R]``: tokens before the row's own that are known."""
        return torch.minimum(self.position_R, self.tables.known_S.index_select(0, self.slot_R))

    @cached_property
    def _output_counts(self) -> dict[int, Tensor]:
        return {}

    def output_counts(self, vocab: int) -> Tensor:
        """int32 ``[R, V]``: how often the output has each token, as far as it is known; counted once."""
        if vocab not in self._output_counts:
            self._output_counts[vocab] = self.counts(vocab, self.prompts)
        return self._output_counts[vocab]

    def counts(self, vocab: int, first_R: Tensor) -> Tensor:
        """int32 ``[R, V]``: how often each token stands from position ``first_R`` up to what is known."""
        rows, longest = self.slot_R.shape[0], min(self.longest, self.tables.tokens_SL.shape[1])
        count_RW = torch.zeros(rows, vocab + 1, dtype=torch.int32, device=first_R.device)  # what does not count is last
        block = max(64, _HISTORY_CELLS // max(1, rows))
        for start in range(0, longest, block):
            place_P = torch.arange(start, min(start + block, longest), device=first_R.device)
            inside_RP = (place_P >= first_R[:, None]) & (place_P < self.known[:, None])
            there_RP = self.tables.tokens_SL[:, start : start + place_P.shape[0]].index_select(0, self.slot_R)
            token_RP = torch.where(inside_RP, there_RP, vocab)
            count_RW.scatter_add_(1, token_RP, torch.ones_like(token_RP, dtype=torch.int32))
        return count_RW[:, :vocab]


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """One way of changing logits.

    Attributes:
        field: of ``SamplingParams``.
        off: the value that changes nothing.
        example: a value that changes something, for measurements and tests.
        dtype: of the values of slots; None where the field is a list.
        reads_history: it depends on the tokens before the row.
        apply: from logits float32 ``[R, V]`` to logits. A row whose value is ``off`` stays as it is, whatever the other
            rows are.
    """

    field: str
    off: object
    example: object
    apply: Callable[[Tensor, AdjustedRows], Tensor]
    dtype: torch.dtype | None = None
    reads_history: bool = False


def _inside(id_RK: Tensor, vocab: int) -> Tensor:
    """The ids, and V for what is none of the vocabulary's (a tokenizer may name an end that the model lacks)."""
    return torch.where((id_RK < 0) | (id_RK >= vocab), vocab, id_RK)


def _banned(logits_RV: Tensor, id_RK: Tensor) -> Tensor:
    """Logits with -inf at the ids; -1 is none."""
    rows, vocab = logits_RV.shape
    ban_RW = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=logits_RV.device)
    ban_RW.scatter_(1, _inside(id_RK, vocab), True)
    return logits_RV.masked_fill(ban_RW[:, :vocab], -torch.inf)


def _bad_words(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Ban the last token of each word whose other tokens are the last ones of the output."""
    word_RBL = rows.list_of("bad_words")
    before = word_RBL.shape[2] - 1
    last_RB = word_RBL[:, :, before]
    if before:
        at_RP = rows.position_R[:, None] - torch.arange(before, 0, -1, device=last_RB.device)
        inside_RP = (at_RP >= rows.prompts[:, None]) & (at_RP < rows.known[:, None])
        there_RP = rows.tables.tokens_SL[rows.slot_R[:, None], at_RP.clamp(min=0)]
        tail_RP = torch.where(inside_RP, there_RP, -2)
        open_RBP = word_RBL[:, :, :before]
        match_RB = ((open_RBP == tail_RP[:, None, :]) | (open_RBP < 0)).all(dim=-1)
        last_RB = torch.where(match_RB, last_RB, -1)
    return _banned(logits_RV, last_RB)


def _suppressed(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Ban some tokens."""
    return _banned(logits_RV, rows.list_of("suppressed"))


def _min_tokens(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Ban the stop tokens while too few tokens are generated."""
    early_R = rows.position_R - rows.prompts < rows.value("min_tokens")
    return _banned(logits_RV, torch.where(early_R[:, None], rows.list_of("stop_ids"), -1))


def _logit_bias(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Add a value to the logits of some tokens."""
    id_RK, bias_RK = rows.list_of("bias_ids"), rows.list_of("bias_values")
    count, vocab = logits_RV.shape
    bias_RW = torch.zeros(count, vocab + 1, device=logits_RV.device)
    bias_RW.scatter_(1, _inside(id_RK, vocab), bias_RK)  # ids of a list are different ones
    return logits_RV + bias_RW[:, :vocab]


def _repetition(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Divide positive logits of tokens in prompt or output, multiply the others of them."""
    seen_RV = rows.counts(logits_RV.shape[1], torch.zeros_like(rows.position_R)) > 0
    penalty_R1 = rows.value("repetition_penalty")[:, None]
    lowered_RV = torch.where(logits_RV > 0, logits_RV / penalty_R1, logits_RV * penalty_R1)
    return torch.where(seen_RV, lowered_RV, logits_RV)


def _frequency(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Take the penalty from a token's logit for each time that the output has it."""
    count_RV = rows.output_counts(logits_RV.shape[1])
    return logits_RV - rows.value("frequency_penalty")[:, None] * count_RV


def _presence(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Take the penalty from the logits of tokens that the output has."""
    there_RV = rows.output_counts(logits_RV.shape[1]) > 0
    return logits_RV - rows.value("presence_penalty")[:, None] * there_RV


ADJUSTMENTS: tuple[Adjustment, ...] = (
    Adjustment(field="bad_words", off=(), example=("e",), apply=_bad_words, reads_history=True),
    Adjustment(field="suppress_tokens", off=(), example=(0, 1), apply=_suppressed),
    Adjustment(field="min_tokens", off=0, example=4, apply=_min_tokens, dtype=torch.int64),
    Adjustment(field="logit_bias", off=(), example=((0, 5.0), (1, -100.0)), apply=_logit_bias),
    Adjustment(
        field="repetition_penalty", off=1.0, example=1.3, apply=_repetition, dtype=torch.float32, reads_history=True
    ),
    Adjustment(
        field="frequency_penalty", off=0.0, example=0.5, apply=_frequency, dtype=torch.float32, reads_history=True
    ),
    Adjustment(
        field="presence_penalty", off=0.0, example=0.7, apply=_presence, dtype=torch.float32, reads_history=True
    ),
)
"""Every adjustment, in the order in which they are applied."""

LISTS: Mapping[str, tuple[torch.dtype, int]] = {
    "stop_ids": (torch.int64, 1),
    "suppressed": (torch.int64, 1),
    "bias_ids": (torch.int64, 1),
    "bias_values": (torch.float32, 1),
    "bad_words": (torch.int64, 2),
}
"""Lists that adjustments read: what they hold, and their dimensions."""


def adjust_logits(logits_RV: Tensor, rows: AdjustedRows) -> Tensor:
    """Apply adjustments, one after the other, to logits float32 ``[R, V]``."""
    for one in rows.uses:
        logits_RV = one.apply(logits_RV, rows)
    return logits_RV
