"""From logits to a token, its entropy and its log-probability: a deterministic function of (row, seed, position).

Every operation works row by row or element by element on whole vector lanes, so a row's choice does not
depend on the other rows (docs/DESIGN.md, "Batch invariance").
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from wedlm_core.decoding.adjustments import AdjustedRows, adjust_logits
from wedlm_core.decoding.allowed_tokens import AllowedRows, refused_tokens, restrict_logits
from wedlm_core.decoding.compact import flagged_rows
from wedlm_core.decoding.filters import filter_logits, is_filtered
from wedlm_core.decoding.noise import gumbel_noise

__all__ = ["Choice", "SamplingRows", "choose", "entropy_of", "with_filters"]


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """Per-row sampling inputs, all ``[R]``.

    Attributes:
        temperature_R: float32; 0 is greedy.
        seed_R: int64, the seed of the row's sequence.
        position_R: int64, the absolute position of the token being chosen.
        suppress_R: bool, rows that may never choose the mask id or padded vocabulary.
        filters: of each filter that any row uses, the values of all rows (:data:`wedlm_core.decoding.filters.FILTERS`).
        adjusted: the same rows, for adjustments that any of them uses; None where none does.
        allowed: the tokens that a grammar lets the same rows choose; None where no row has a grammar. Rows with
            ``suppress_R`` have none.
        sampled, suppressing: whether any row needs that stage (known on the host, so that the stage is skipped
            without looking at the device).
        special_rows: rows that a filter or an adjustment applies to at most, padding behind them left out; None
            where the host does not know.
    """

    temperature_R: Tensor
    seed_R: Tensor
    position_R: Tensor
    suppress_R: Tensor
    filters: Mapping[str, Tensor] = field(default_factory=dict)
    adjusted: AdjustedRows | None = None
    allowed: AllowedRows | None = None
    sampled: bool
    suppressing: bool
    special_rows: int | None = None

    def take(self, index_N: Tensor) -> SamplingRows:
        """The rows of ``index_N`` (int64)."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_R")}
        return replace(
            self,
            **{name: tensor.index_select(0, index_N) for name, tensor in tensors.items()},
            filters={name: value_R.index_select(0, index_N) for name, value_R in self.filters.items()},
            adjusted=None if self.adjusted is None else self.adjusted.take(index_N),
            allowed=None if self.allowed is None else self.allowed.take(index_N),
        )

    def special(self) -> Tensor | None:
        """Bool ``[R]``: rows that a filter or an adjustment applies to; None where it is surely none."""
        flags = [is_filtered(self.filters)] if self.filters else []
        flags += [self.adjusted.flags] if self.adjusted is not None else []
        return functools.reduce(torch.logical_or, flags) if flags else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Per row ``[R]``: token (int64), entropy of the distribution it was taken from and its log-probability (nats).

    Both are of the raw logits at temperature 1 (docs/DESIGN.md, "Decoding semantics"). Rows with ``suppress_R`` leave
    the suppressed ids out; where such a row samples, its entropy is of the distribution that is sampled from.
    """

    token_R: Tensor
    entropy_R: Tensor
    logprob_R: Tensor


def entropy_of(logits_RV: Tensor) -> Tensor:
    """Shannon entropy in nats, float32 ``[R]``; -inf logits count nothing."""
    return _entropy(logits_RV, torch.log_softmax(logits_RV, dim=-1))


def _entropy(logits_RV: Tensor, log_RV: Tensor) -> Tensor:
    # softmax and log_softmax run row by row; a plain exp over the flat tensor would round its tail otherwise.
    return -(torch.softmax(logits_RV, dim=-1) * log_RV.clamp_min(-1e30)).sum(dim=-1)


def choose(logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int) -> Choice:
    """Choose one token per row: ``argmax(filter(adjusted / T) + gumbel(seed, position))``, argmax at T = 0.

    Rows with a grammar choose among the tokens that it allows. Where it and the adjustments leave none, the choice is a
    token that the grammar refuses, if there is any.

    Args:
        logits_RV: floating point ``[R, V]``; computed with in float32.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
    """
    logits_RV = logits_RV.float()
    allowed_RV = logits_RV
    if rows.suppressing:
        allowed_RV = logits_RV.clone()
        allowed_RV[:, mask_token_id].masked_fill_(rows.suppress_R, -torch.inf)
        allowed_RV[:, vocab_limit:].masked_fill_(rows.suppress_R[:, None], -torch.inf)
    adjusted_RV = allowed_RV if rows.adjusted is None else adjust_logits(allowed_RV, rows.adjusted)
    if rows.allowed is not None:
        adjusted_RV = restrict_logits(adjusted_RV, rows.allowed)
    token_R = adjusted_RV.max(dim=-1).indices  # the first of equal ones; several times faster than argmax on CPU
    log_RV = torch.log_softmax(allowed_RV, dim=-1)
    entropy_R = _entropy(allowed_RV, log_RV)
    if rows.sampled:
        greedy_R = rows.temperature_R == 0
        scaled_RV = adjusted_RV / torch.where(greedy_R, 1.0, rows.temperature_R)[:, None]
        kept_RV = filter_logits(scaled_RV, rows.filters)
        noise_RV = gumbel_noise(rows.seed_R, rows.position_R, logits_RV.shape[-1])
        token_R = torch.where(greedy_R, token_R, (kept_RV + noise_RV).argmax(dim=-1))
        if rows.suppressing:
            entropy_R = torch.where(rows.suppress_R & ~greedy_R, entropy_of(kept_RV), entropy_R)
    if rows.allowed is not None and rows.adjusted is not None:
        nothing_R = adjusted_RV.max(dim=-1).values == -torch.inf
        token_R = torch.where(nothing_R, refused_tokens(rows.allowed, logits_RV.shape[-1]), token_R)
    logprob_R = log_RV.gather(-1, token_R[:, None]).squeeze(-1)
    return Choice(token_R=token_R, entropy_R=entropy_R, logprob_R=logprob_R)


def with_filters(
    choice: Choice, logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int
) -> Choice:
    """``choice`` with filtered and adjusted rows chosen by :func:`choose`, whatever the other rows are.

    For forms of ``choose`` that do neither. Waits for the device only where ``special_rows`` is not known.
    """
    flag_R, count = rows.special(), logits_RV.shape[0]
    if flag_R is None:
        return choice
    picked_N = flagged_rows(flag_R, rows.special_rows)
    known_N = picked_N.clamp(max=count - 1)
    slow = choose(
        logits_RV.index_select(0, known_N),
        rows.take(known_N),
        mask_token_id=mask_token_id,
        vocab_limit=vocab_limit,
    )
    merged = {
        # What was only padding is put behind the rows, and left there.
        f.name: torch.nn.functional.pad(getattr(choice, f.name), (0, 1)).index_copy_(0, picked_N, getattr(slow, f.name))
        for f in fields(Choice)
    }
    return Choice(**{name: value_R[:count] for name, value_R in merged.items()})
