"""``reference`` and ``blockwise``: the published rule with a fixed window, and moves of windows that others share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.decoding.selection import leading_run, select_fills
from wedlm_core.decoding.strategies.base import (
    Commit,
    Decoding,
    RowChoices,
    Wanted,
    decodes,
    mask_from,
    places_of,
    to_places,
)
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams, shift_left
from wedlm_core.types import Strategy


@decodes(Strategy.REFERENCE)
@dataclass(frozen=True)
class WindowDecoding(Decoding):
    """The published rule with a fixed window (docs/design/decoding.md)."""

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Append as many masks as the next forward commits, so that W places remain after it."""
        place_L = places_of(window)
        in_window_SL = place_L < params.masks_S[:, None]
        lead_S = self.committable(leading_run(window.filled_SL & in_window_SL), params)
        mask_from(window, in_window_SL, params.masks_S + lead_S, mask_id)
        window.lead_S = lead_S

    def committable(self, lead_S: Tensor, params: WindowParams) -> Tensor:
        """int64 ``[S]``: how many of the ``lead_S`` leading filled places the next forward commits."""
        return lead_S

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Masks only."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        filled_S1 = window.filled_SL.sum(dim=-1, keepdim=True)
        masks_SR = (row_R >= filled_S1) & (row_R < layout.count_S[:, None])
        return Wanted(next_SR=torch.zeros_like(masks_SR), self_SR=masks_SR)

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the leading filled places, fill masks by penalised entropy."""
        place_L, lead_S = places_of(window), window.lead_S
        mask_SL = ~window.filled_SL & (place_L < window.length_S[:, None])
        entropy_SL = to_places(layout, choices.entropy_SR)
        fill_SL = select_fills(entropy_SL, mask_SL, params.threshold_S, params.penalty_S)
        commit = commit_leading(window, lead_S, fill_SL)
        fill(window, fill_SL, to_places(layout, choices.token_SR), entropy_SL)
        move_on(window, lead_S)
        window.emitted_S = window.emitted_S + lead_S
        return commit


@decodes(Strategy.BLOCKWISE)
@dataclass(frozen=True)
class BlockwiseDecoding(WindowDecoding):
    """Block diffusion with stop-and-wait, the baseline of the paper (its figure 4c): a window commits as a whole."""

    def committable(self, lead_S: Tensor, params: WindowParams) -> Tensor:
        """int64 ``[S]``: the whole block or nothing."""
        return torch.where(lead_S == params.masks_S, lead_S, 0)


def commit_leading(window: Window, lead_S: Tensor, fill_SL: Tensor) -> Commit:
    """The commit of the first ``lead_S`` window places, one place wider than the window."""
    zero = torch.zeros_like(lead_S)

    def widen(value_SL: Tensor) -> Tensor:
        return torch.nn.functional.pad(value_SL, (0, 1))

    entropy_SC = widen(window.entropy_SL)
    return Commit(
        token_SC=widen(window.token_SL),
        entropy_SC=entropy_SC,
        logprob_SC=torch.full_like(entropy_SC, torch.nan),
        early_SC=widen(window.early_SL),
        count_S=lead_S,
        drafts_S=zero,
        agreed_S=zero,
        offered_S=zero,
        valid_S=window.valid_S,
        next_valid_S=window.valid_S,
        context_S=lead_S,
        fill_SL=fill_SL,
    )


def fill(window: Window, fill_SL: Tensor, token_SL: Tensor, entropy_SL: Tensor, upto_S1: Tensor | int = -1) -> None:
    """Put chosen tokens in the places of ``fill_SL`` and note which came before an earlier place.

    ``upto_S1``: places up to this one count as filled (``streaming`` fills it through the next-token head).
    """
    place_L = places_of(window)
    window.token_SL = torch.where(fill_SL, token_SL, window.token_SL)
    window.entropy_SL = torch.where(fill_SL, entropy_SL, window.entropy_SL)
    window.filled_SL = window.filled_SL | fill_SL
    open_SL = (~window.filled_SL & (place_L > upto_S1)).to(torch.int64)
    window.early_SL = window.early_SL | (fill_SL & (open_SL.cumsum(dim=-1) > 0))


def move_on(window: Window, count_S: Tensor) -> None:
    """Drop the committed places from the left."""
    window.token_SL = shift_left(window.token_SL, count_S, 0)
    window.filled_SL = shift_left(window.filled_SL, count_S, False)
    window.entropy_SL = shift_left(window.entropy_SL, count_S, 0.0)
    window.early_SL = shift_left(window.early_SL, count_S, False)
