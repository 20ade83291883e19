"""The most likely tokens of rows (``logprobs=k``): of the model's own distribution, for rows that report them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import FREE, only
from wedlm_core.decoding.compact import flagged_rows

__all__ = ["Tops", "join_tops", "most_likely"]


@dataclass(frozen=True, kw_only=True)
class Tops:
    """The K most likely tokens of R rows, most likely first, and their log-probabilities in nats.

    Attributes:
        token_RK: int64.
        logprob_RK: float32; -inf where no token has any probability, as after one that is the only choice.
    """

    token_RK: Tensor
    logprob_RK: Tensor

    @classmethod
    def zeros(cls, rows: int, most: int, device: torch.device) -> Tops:
        """Zeros for so many rows."""
        return cls(
            token_RK=torch.zeros(rows, most, dtype=torch.int64, device=device),
            logprob_RK=torch.zeros(rows, most, device=device),
        )

    def beside(self, line_R: Tensor, place_L: Tensor | None) -> Tops:
        """Tops of L rows, placed among R rows; a row that may choose a single token has that token only.

        Args:
            line_R: int64, the allowed tokens of rows (``AllowedRows.line_R``).
            place_L: int64; None where these are all R.
        """
        tops = self
        if place_L is not None:
            tops = Tops.zeros(line_R.shape[0], self.token_RK.shape[1], line_R.device)
            tops.put(place_L, self)
        certain_R1 = (line_R < FREE)[:, None]
        logprob_RK = tops.logprob_RK.masked_fill(certain_R1, -torch.inf)
        token_RK = torch.where(certain_R1, only(line_R)[:, None], tops.token_RK)
        logprob_RK[:, 0].masked_fill_(certain_R1[:, 0], 0.0)
        return Tops(token_RK=token_RK, logprob_RK=logprob_RK)

    def put(self, place_N: Tensor, other: Tops) -> None:
        """Write the rows of ``other`` to these places (int64), different ones but for a place that no one reads."""
        self.token_RK[place_N] = other.token_RK
        self.logprob_RK[place_N] = other.logprob_RK


def join_tops(parts: Sequence[Tops]) -> Tops | None:
    """One after the other; None of none."""
    if not parts:
        return None
    return Tops(
        token_RK=torch.cat([part.token_RK for part in parts]), logprob_RK=torch.cat([part.logprob_RK for part in parts])
    )


def most_likely(logits_RV: Tensor, flag_R: Tensor, most: int, bound: int | None) -> Tops:
    """The most likely tokens of flagged rows; zeros for the others. Equally likely ones stand by their ids.

    Args:
        logits_RV: floating point ``[R, V]``; computed with in float32.
        flag_R: bool, rows to look at.
        most: tokens of a row; where the vocabulary has fewer, zeros follow.
        bound: flagged rows at most, padding after them left out; None where the host does not know.
    """
    count, vocab = logits_RV.shape
    picked_N = flagged_rows(flag_R, bound)
    log_NV = torch.log_softmax(logits_RV.index_select(0, picked_N.clamp(max=count - 1)).float(), dim=-1)
    found = log_NV.topk(min(most, vocab), dim=-1)
    token_NK, by_id_NK = found.indices.sort(dim=-1)
    logprob_NK, by_value_NK = found.values.gather(-1, by_id_NK).sort(dim=-1, descending=True, stable=True)
    tops = Tops.zeros(count + 1, most, logits_RV.device)
    width = logprob_NK.shape[1]
    tops.token_RK[:, :width].index_copy_(0, picked_N, token_NK.gather(-1, by_value_NK))
    tops.logprob_RK[:, :width].index_copy_(0, picked_N, logprob_NK)
    return Tops(token_RK=tops.token_RK[:count], logprob_RK=tops.logprob_RK[:count])
