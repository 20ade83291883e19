"""Which masks of a window are filled: distance-penalised entropy (paper, section 5.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def leading_run(flag_SL: Tensor) -> Tensor:
    """int64 ``[S]``: how many flags are true before the first false one, counted from the left."""
    return flag_SL.to(torch.int64).cumprod(dim=-1).sum(dim=-1)


def penalised_entropy(entropy_SL: Tensor, candidate_SL: Tensor, penalty_S: Tensor) -> Tensor:
    """``H + penalty * d``, d the logical distance to the leftmost candidate; +inf off the candidates.

    Args:
        entropy_SL: float32 ``[S, L]`` nats, by logical place.
        candidate_SL: bool ``[S, L]``, the masks that may be filled.
        penalty_S: float32 ``[S]`` nats per position.
    """
    place_L = torch.arange(candidate_SL.shape[-1], device=candidate_SL.device)
    leftmost_S1 = candidate_SL.to(torch.uint8).argmax(dim=-1, keepdim=True)
    adjusted_SL = entropy_SL + penalty_S[:, None] * (place_L - leftmost_S1)
    return adjusted_SL.masked_fill(~candidate_SL, torch.inf)


def select_fills(entropy_SL: Tensor, candidate_SL: Tensor, threshold_S: Tensor, penalty_S: Tensor) -> Tensor:
    """The published rule (docs/design/decoding.md).

    Fill every candidate whose penalised entropy is strictly below the threshold; where there is none, the
    single smallest (the first on ties). A threshold of -inf stands for "None": always the single smallest.

    Args:
        entropy_SL: float32 ``[S, L]`` nats, by logical place; any value off the candidates.
        candidate_SL: bool ``[S, L]``.
        threshold_S: float32 ``[S]`` nats.
        penalty_S: float32 ``[S]`` nats per position.

    Returns:
        bool ``[S, L]``; a row without candidates selects nothing.
    """
    adjusted_SL = penalised_entropy(entropy_SL, candidate_SL, penalty_S)
    below_SL = adjusted_SL < threshold_S[:, None]
    smallest_S1 = adjusted_SL.argmin(dim=-1, keepdim=True)  # the first of equal minima
    fallback_SL = torch.zeros_like(candidate_SL).scatter_(-1, smallest_S1, True)
    fallback_SL &= ~below_SL.any(dim=-1, keepdim=True)
    return (below_SL | fallback_SL) & candidate_SL
