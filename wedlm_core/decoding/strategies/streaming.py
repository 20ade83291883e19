"""``streaming``: the published rule plus free additions, each with a switch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.config import EngineConfig
from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.decoding.selection import leading_run, penalised_entropy
from wedlm_core.decoding.strategies.base import (
    Commit,
    Decoding,
    RowChoices,
    Wanted,
    decodes,
    mask_from,
    places_of,
    through_stop,
    to_places,
)
from wedlm_core.decoding.strategies.window import commit_leading, fill, move_on
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams
from wedlm_core.types import Strategy


@decodes(Strategy.STREAMING)
@dataclass(frozen=True)
class StreamingDecoding(Decoding):
    """The published rule with more commits per row (docs/design/decoding.md); each part has a switch.

    The last contiguous row fills the leftmost place through the next-token head, so every step commits; masks
    after it are filled by penalised entropy with a price on holes and without a fallback; the window is
    clipped at ``max_tokens`` and after a filled stop token; the mask id is never chosen.
    """

    switches: StreamingSwitches

    head = True

    @classmethod
    def of(cls, config: EngineConfig) -> StreamingDecoding:
        """With the engine's switches."""
        return cls(config.streaming)

    @property
    def clips(self) -> bool:  # type: ignore[override]
        """As the switch says."""
        return self.switches.clip

    @property
    def suppresses(self) -> bool:  # type: ignore[override]
        """As the switch says."""
        return self.switches.suppress

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Refill to W masks and filled places after the leading run, clipped."""
        place_L = places_of(window)
        lead_S = leading_run(window.filled_SL)
        length_S = params.masks_S + lead_S
        if self.switches.clip:
            left_S = (params.limit_S - window.emitted_S).clamp(min=0)
            before_stop_S = through_stop(window, params).sum(dim=-1)
            length_S = torch.minimum(torch.minimum(length_S, left_S), before_stop_S)
        mask_from(window, place_L < length_S[:, None], length_S, mask_id)
        window.lead_S = torch.minimum(lead_S, length_S)

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """The last contiguous row chooses the leftmost place; every later mask proposes its own."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        filled_S1 = window.filled_SL.sum(dim=-1, keepdim=True)
        chooses_S1 = self._head_chooses(window)[:, None]
        # The leftmost mask is the first mask row; the next-token head fills its place.
        masks_SR = (row_R > filled_S1 + chooses_S1) & (row_R < layout.count_S[:, None])
        return Wanted(next_SR=(row_R == window.lead_S[:, None]) & chooses_S1, self_SR=masks_SR)

    def _head_chooses(self, window: Window) -> Tensor:
        """Bool ``[S]``: whether the next-token head gives the leftmost place in this forward.

        It does in a window of no places, whatever the switches say: there is no mask that could.
        """
        first_S = window.emitted_S == 0
        chooses_S = torch.where(first_S, self.switches.prefill_token, self.switches.head_fills_leftmost)
        return chooses_S | (window.length_S == 0)

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the leading run and the head's token after it; fill where certainty pays for the hole."""
        place_L, lead_S = places_of(window), window.lead_S
        row_S1, chooses_S = lead_S[:, None], self._head_chooses(window)
        count_S = lead_S + chooses_S
        chosen_S = choices.token_SR.gather(1, row_S1).squeeze(1)
        last_S = window.token_SL.gather(1, (row_S1 - 1).clamp(min=0)).squeeze(1)
        mask_SL = ~window.filled_SL & (place_L < window.length_S[:, None])
        candidate_SL = mask_SL & (place_L >= count_S[:, None])
        entropy_SL = to_places(layout, choices.entropy_SR)
        fill_SL = self._accept(entropy_SL, candidate_SL, params, chooses_S)
        commit = commit_leading(window, lead_S, fill_SL)
        column_SC = torch.arange(commit.token_SC.shape[1], device=place_L.device)
        place_SC = (column_SC == row_S1) & chooses_S[:, None]
        commit = Commit(
            token_SC=torch.where(place_SC, chosen_S[:, None], commit.token_SC),
            entropy_SC=torch.where(place_SC, choices.entropy_SR.gather(1, row_S1), commit.entropy_SC),
            logprob_SC=commit.logprob_SC,
            early_SC=commit.early_SC & ~place_SC,
            count_S=count_S,
            drafts_S=commit.drafts_S,
            agreed_S=lead_S,
            offered_S=torch.minimum(params.masks_S, window.length_S),
            valid_S=window.valid_S,
            next_valid_S=window.valid_S,
            # The head's KV is final; where it chose nothing, the last committed token is the next head.
            context_S=count_S,
            fill_SL=fill_SL,
        )
        upto_S1 = (count_S - 1)[:, None]
        fill(window, fill_SL, to_places(layout, choices.token_SR), entropy_SL, upto_S1=upto_S1)
        move_on(window, count_S)
        window.head_S = torch.where(chooses_S, chosen_S, torch.where(lead_S > 0, last_S, window.head_S))
        window.emitted_S = window.emitted_S + count_S
        return commit

    def _accept(self, entropy_SL: Tensor, candidate_SL: Tensor, params: WindowParams, chooses_S: Tensor) -> Tensor:
        """Penalised entropy below the threshold, then once more with the price of the holes left before."""
        adjusted_SL = penalised_entropy(entropy_SL, candidate_SL, params.penalty_S)
        certain_SL = adjusted_SL < params.threshold_S[:, None]
        hole_SL = (candidate_SL & ~certain_SL).to(torch.int64)
        holes_before_SL = hole_SL.cumsum(dim=-1) - hole_SL
        priced_SL = adjusted_SL + self.switches.hole_price * holes_before_SL
        fill_SL = certain_SL & (priced_SL < params.threshold_S[:, None])
        if self.switches.fallback or not self.switches.prefill_token:
            # Masks alone have to get on, so a forward that would fill nothing fills the most certain mask.
            smallest_SL = torch.zeros_like(fill_SL).scatter_(-1, priced_SL.argmin(dim=-1, keepdim=True), True)
            falls_S = ~fill_SL.any(dim=-1) & (~chooses_S | self.switches.fallback)
            fill_SL = fill_SL | (smallest_SL & candidate_SL & falls_S[:, None])
        return fill_SL
