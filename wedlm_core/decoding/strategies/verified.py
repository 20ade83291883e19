"""``verified``: masks draft, the next-token head verifies. ``autoregressive`` is the same without masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from wedlm_core.decoding.selection import leading_run
from wedlm_core.decoding.strategies.base import (
    Commit,
    Decoding,
    IntArray,
    Refills,
    RowChoices,
    Wanted,
    decodes,
    mask_from,
    places_of,
    through_stop,
)
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams, shift_left
from wedlm_core.types import Strategy


@decodes(Strategy.VERIFIED, Strategy.AUTOREGRESSIVE)
@dataclass(frozen=True)
class VerifiedDecoding(Decoding):
    """Masks draft, the next-token head verifies: autoregressive output (docs/design/verified.md)."""

    head = True
    verifies = True
    clips = True
    has_kernels = True

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Drafts are kept as allocated, up to ``max_tokens`` and a stop token; masks follow where useful."""
        place_L = places_of(window)
        left_S = (params.limit_S - window.emitted_S).clamp(min=0)
        most_S = torch.minimum(torch.where(window.valid_S, params.keep_valid_S, params.keep_stale_S), left_S)
        keep_SL = (place_L < most_S[:, None]) & through_stop(window, params)
        drafts_S = leading_run(window.filled_SL & keep_SL)
        last = (drafts_S - 1).clamp(min=0)[:, None]
        last_is_stop_S = (window.token_SL.gather(1, last) == params.stop_SK).any(-1) & (drafts_S > 0)
        masks_S = torch.where(last_is_stop_S, 0, torch.minimum(params.masks_S, left_S - drafts_S))
        mask_from(window, place_L < drafts_S[:, None], drafts_S + masks_S, mask_id)
        window.lead_S = drafts_S

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Head and drafts verify their successor; masks propose."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        next_SR = row_R <= window.lead_S[:, None]
        return Wanted(next_SR=next_SR, self_SR=~next_SR & (row_R < layout.count_S[:, None]))

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the agreeing drafts and the head's choice after them; the rest are the next drafts."""
        place_L, drafts_S = places_of(window), window.lead_S
        draft_SL = place_L < drafts_S[:, None]
        right_SL = draft_SL & (window.token_SL == choices.token_SR[:, :-1])
        agreed_S = leading_run(right_SL)
        count_S = agreed_S + 1
        # Physical order is logical here, so row j + 1 holds place j; a mask's row holds its own proposal.
        token_SL = torch.where(draft_SL, window.token_SL, choices.token_SR[:, 1:])
        window.filled_SL = place_L < (window.length_S - count_S)[:, None]
        window.head_S = choices.token_SR.gather(1, agreed_S[:, None]).squeeze(1)
        # The first mask proposes for the place that the last draft's row decides: a test of the proposals after it.
        first_S = token_SL.gather(1, drafts_S.clamp(max=place_L.shape[0] - 1)[:, None]).squeeze(1)
        was_valid_S = window.valid_S
        window.valid_S = (agreed_S == drafts_S) & (first_S == window.head_S)
        window.token_SL = shift_left(token_SL, count_S, 0)
        window.emitted_S = window.emitted_S + count_S
        return Commit(
            token_SC=choices.token_SR,
            entropy_SC=choices.entropy_SR,
            logprob_SC=choices.logprob_SR,
            early_SC=torch.zeros_like(choices.token_SR, dtype=torch.bool),
            count_S=count_S,
            drafts_S=torch.minimum(drafts_S, count_S),
            agreed_S=agreed_S,
            offered_S=drafts_S,
            valid_S=was_valid_S,
            next_valid_S=window.valid_S,
            context_S=count_S,
            fill_SL=~draft_SL & (place_L < window.length_S[:, None]),
        )

    def next_rows(self, refills: Refills, rows_D: IntArray, left_D: IntArray) -> IntArray:
        """See :meth:`Decoding.next_rows`: one place at least goes to the committed token."""
        kept_D = np.minimum(refills.kept_D, np.maximum(rows_D - 2, 0))
        after_D = np.minimum(refills.masks_D + kept_D, np.maximum(left_D - 1, 0)) + 1
        return np.where(left_D <= 1, 0, after_D)

    def wanted_rows(self, refills: Refills, rows_D: IntArray) -> IntArray:
        """All rows: head and drafts verify, masks propose."""
        return rows_D
