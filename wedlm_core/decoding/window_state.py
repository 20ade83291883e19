"""The window state of all sequences, as tensors by slot, and the row layout every strategy shares.

A sequence's rows in a decode forward are, in physical order::

    [head token, if the strategy keeps one][filled window places, ascending][masked window places, ascending]

The *head* is the last committed token, whose KV is not cached yet: its next-token logits give the token of
window place 0. ``verified``, ``autoregressive`` and ``streaming`` keep one; ``reference`` and ``blockwise``
do not. Window place i stands at logical position ``context + head + i``, where ``context`` counts the tokens
whose KV is final. L is the capacity of a window in places.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from wedlm_core.ordering import observed_first


@dataclass(kw_only=True)
class Window:
    """Decoding state of S sequences (all slots of an engine, or a gathered part of them).

    Attributes:
        token_SL: int64, the token of a filled place, the mask id elsewhere.
        filled_SL: bool.
        entropy_SL: float32 nats, of the distribution a filled place's token was taken from.
        early_SL: bool, the place was filled while one before it was still masked.
        length_S: int64, places in use.
        lead_S: int64, leading filled places that the next forward commits (window strategies).
        head_S: int64, the head token; -1 where the strategy keeps none.
        emitted_S: int64, tokens generated so far, the head included once it is generated.
        valid_S: bool, the filled places were proposed after tokens that turned out right (``verified``).
    """

    token_SL: Tensor
    filled_SL: Tensor
    entropy_SL: Tensor
    early_SL: Tensor
    length_S: Tensor
    lead_S: Tensor
    head_S: Tensor
    emitted_S: Tensor
    valid_S: Tensor

    def gather(self, slots_S: Tensor, width: int) -> Window:
        """Copies of these slots' state, windows cut to their first ``width`` places."""
        return Window(
            **{
                f.name: getattr(self, f.name)[..., :width][slots_S]
                if f.name.endswith("_SL")
                else getattr(self, f.name).index_select(0, slots_S)
                for f in fields(self)
            }
        )

    def scatter(self, slots_S: Tensor, part: Window) -> None:
        """Write gathered state back to its slots."""
        width = part.token_SL.shape[1]
        for field in fields(self):
            whole, value = getattr(self, field.name), getattr(part, field.name)
            if field.name.endswith("_SL"):
                whole[:, :width].index_copy_(0, slots_S, value)
            else:
                whole.index_copy_(0, slots_S, value)


@dataclass(frozen=True, kw_only=True)
class WindowParams:
    """The parameters of each slot's request that strategies read.

    Attributes:
        masks_S: int64, masks of the next window.
        keep_valid_S, keep_stale_S: int64, drafts kept at most where ``Window.valid_S`` is set and where it is not;
            both equal the window where that is fixed.
        threshold_S: float32 nats; -inf where the request's threshold is None.
        penalty_S: float32 nats per position.
        limit_S: int64, ``max_tokens``.
        stop_SK: int64 stop tokens, -1 after the last.
    """

    masks_S: Tensor
    keep_valid_S: Tensor
    keep_stale_S: Tensor
    threshold_S: Tensor
    penalty_S: Tensor
    limit_S: Tensor
    stop_SK: Tensor

    def gather(self, slots_S: Tensor) -> WindowParams:
        """Copies of these slots' parameters."""
        return WindowParams(**{f.name: getattr(self, f.name).index_select(0, slots_S) for f in fields(self)})


def empty_windows(slots: int, width: int, device: torch.device) -> Window:
    """State of ``slots`` unused slots with windows of ``width``."""

    def per_slot(fill: int = 0) -> Tensor:
        return torch.full((slots,), fill, dtype=torch.int64, device=device)

    return Window(
        token_SL=torch.zeros(slots, width, dtype=torch.int64, device=device),
        filled_SL=torch.zeros(slots, width, dtype=torch.bool, device=device),
        entropy_SL=torch.zeros(slots, width, dtype=torch.float32, device=device),
        early_SL=torch.zeros(slots, width, dtype=torch.bool, device=device),
        length_S=per_slot(),
        lead_S=per_slot(),
        head_S=per_slot(-1),
        emitted_S=per_slot(),
        valid_S=torch.ones(slots, dtype=torch.bool, device=device),
    )


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """The decode rows of S sequences in physical order, R = L + 1 places, the first ``count_S`` in use.

    Attributes:
        order_SL: int64, window place at each physical row after the head.
        id_SR: int64 token ids (the head, if any, first).
        offset_SR: int64, logical position minus ``context``.
        count_S: int64 rows in use.
        has_head_S: bool.
    """

    order_SL: Tensor
    id_SR: Tensor
    offset_SR: Tensor
    count_S: Tensor
    has_head_S: Tensor


def lay_out(window: Window) -> RowLayout:
    """Physical rows of a decode forward: observed first, positions logical (paper, section 3.1)."""
    width = window.token_SL.shape[1]
    place_L = torch.arange(width, device=window.token_SL.device)
    order_SL = observed_first(window.filled_SL, place_L < window.length_S[:, None])
    has_head_S = window.head_S >= 0
    id_SL = window.token_SL.gather(1, order_SL)
    # With a head the window starts one row and one position later; without, the last place stays unused.
    shift_S1 = has_head_S[:, None].to(torch.int64)
    place_SR = (torch.arange(width + 1, device=place_L.device) - shift_S1).clamp(0, width - 1)
    id_SR = id_SL.gather(1, place_SR)
    offset_SR = order_SL.gather(1, place_SR) + shift_S1
    id_SR[:, 0] = torch.where(has_head_S, window.head_S, id_SR[:, 0])
    offset_SR[:, 0] = torch.where(has_head_S, 0, offset_SR[:, 0])
    return RowLayout(
        order_SL=order_SL,
        id_SR=id_SR,
        offset_SR=offset_SR,
        count_S=window.length_S + has_head_S,
        has_head_S=has_head_S,
    )


def shift_left(value_SL: Tensor, count_S: Tensor, fill: int | float | bool) -> Tensor:
    """Drop the first ``count_S`` places of each row; values shifted in from the right are ``fill``."""
    width = value_SL.shape[1]
    source_SL = torch.arange(width, device=value_SL.device) + count_S[:, None]
    moved_SL = value_SL.gather(1, source_SL.clamp(max=width - 1))
    return moved_SL.masked_fill(source_SL >= width, fill)
