"""WeDLM's reorder of a window: observed tokens first, masks after them. Decoding and training share it.

The paper calls it "topological reordering" (arXiv 2512.22737, section 3.1). The observed tokens of a window or block
move to its physical front; the masks follow; each group keeps its logical order. Under plain causal attention a mask
then sees every observed token, including those with a later logical position. Rotary positions stay logical, so the
model still knows the position of each token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def observed_first(observed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Physical order of a window: observed indices ascending, then masked ones ascending, then unused ones.

    Args:
        observed: bool ``[..., L]``, True where the logical index holds a token.
        valid: bool ``[..., L]`` or None; False where the index is not part of the window.

    Returns:
        int64 ``[..., L]``: ``order[..., p]`` is the logical index of physical index ``p``.
    """
    group = (~observed).to(torch.uint8)
    if valid is not None:
        group = group.masked_fill(~valid, 2)
    return torch.argsort(group, dim=-1, stable=True)


def to_logical(order: Tensor, physical: Tensor) -> Tensor:
    """Reorder values from physical to logical order: the inverse of :func:`observed_first`.

    Args:
        order: int64 ``[..., L]`` from :func:`observed_first`.
        physical: any dtype ``[..., L]``: the value of each physical index.

    Returns:
        Same shape and dtype as ``physical``: the value of each logical index.
    """
    return torch.zeros_like(physical).scatter_(-1, order, physical)
