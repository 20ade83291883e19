"""Observed-first reorder with logical positions: the one copy, used by decoding and by training.

WeDLM (arXiv 2512.22737, section 3.1, "topological reordering") moves the observed tokens of a window or
block to its physical front and leaves the masks behind them, each group in logical order. Under standard
causal attention a mask then sees every observed token, also those logically after it; rotary positions
stay logical, so the model still knows where each token stands.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["observed_first", "to_logical"]


def observed_first(observed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Physical order of a window: observed slots ascending, then masked slots ascending, then unused ones.

    Args:
        observed: bool ``[..., L]``, True where the logical slot holds a token.
        valid: bool ``[..., L]`` or None; False where the slot is not part of the window at all.

    Returns:
        int64 ``[..., L]``: ``order[..., p]`` is the logical slot that stands at physical place ``p``.
    """
    group = (~observed).to(torch.uint8)
    if valid is not None:
        group = group.masked_fill(~valid, 2)
    return torch.argsort(group, dim=-1, stable=True)


def to_logical(order: Tensor, physical: Tensor, fill: float | int | bool = 0) -> Tensor:
    """Bring per-row values back from physical to logical order.

    Args:
        order: int64 ``[..., L]`` from :func:`observed_first`.
        physical: any dtype ``[..., L]``: a value for each physical place.
        fill: initial content; every place is overwritten when ``order`` is a whole permutation.

    Returns:
        Same shape and dtype as ``physical``: the value of each logical slot.
    """
    return torch.full_like(physical, fill).scatter_(-1, order, physical)
