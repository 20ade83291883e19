"""The strategies, each as three vectorised functions over the sequences that use it.

``refill`` sets up the next forward's window, ``wanted`` says which of its rows need logits and of which
kind, ``advance`` turns their choices into commits and the window that remains. ``autoregressive`` is
``verified`` with no masks; ``blockwise`` is ``reference`` that waits for a whole block.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wedlm_core.config.streaming import StreamingSwitches
from wedlm_core.decoding.selection import leading_run, penalised_entropy, select_fills
from wedlm_core.decoding.window import RowLayout, Window, WindowParams, shift_left
from wedlm_core.ordering import to_logical
from wedlm_core.types import Strategy

__all__ = ["Commit", "Decoding", "RowChoices", "Wanted", "decoding_of"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Rows of a layout that need logits: bool ``[S, R]`` each, disjoint.

    ``next_SR`` rows choose the token after theirs (next-token head); ``self_SR`` rows (masks) their own.
    """

    next_SR: Tensor
    self_SR: Tensor


@dataclass(frozen=True, kw_only=True)
class RowChoices:
    """Choices by physical row, ``[S, R]``; any value on rows that were not wanted."""

    token_SR: Tensor
    entropy_SR: Tensor
    logprob_SR: Tensor


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What a forward committed, in logical order; C = R places, the first ``count_S`` in use.

    Attributes:
        token_SC: int64.
        entropy_SC: float32 nats.
        logprob_SC: float32 nats under the next-token head; NaN where the strategy has none.
        early_SC: bool, filled out of order.
        count_S: int64; may run past ``max_tokens`` or a stop token: the caller cuts.
        drafts_S, agreed_S: int64, drafts verified in this forward, and those that were right.
        offered_S: int64, window slots that this forward could have committed behind the first token, of which
            ``agreed_S`` were (``verified``: the drafts; ``streaming``: the window).
        valid_S: bool, :attr:`Window.valid_S` of those slots.
        next_valid_S: bool, the same of what is left.
        context_S: int64, tokens whose KV became final.
        fill_SL: bool, window slots (before the shift) filled by this forward.
    """

    token_SC: Tensor
    entropy_SC: Tensor
    logprob_SC: Tensor
    early_SC: Tensor
    count_S: Tensor
    drafts_S: Tensor
    agreed_S: Tensor
    offered_S: Tensor
    valid_S: Tensor
    next_valid_S: Tensor
    context_S: Tensor
    fill_SL: Tensor


class Decoding(Protocol):
    """One strategy; stateless. ``head`` tells whether sequences keep a head token."""

    head: bool
    suppresses: bool

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Append masks and set ``length_S`` and ``lead_S`` for the next forward, in place."""
        ...

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Rows of the forward that need logits."""
        ...

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit, and move ``window`` on in place (not yet refilled)."""
        ...


def _slots(window: Window) -> Tensor:
    return torch.arange(window.token_SL.shape[1], device=window.token_SL.device)


def _mask_from(window: Window, keep_SL: Tensor, length_S: Tensor, mask_id: int) -> None:
    """Keep the filled slots under ``keep_SL``, make every other slot a mask, set the length."""
    window.filled_SL &= keep_SL
    window.token_SL = torch.where(window.filled_SL, window.token_SL, mask_id)
    window.early_SL &= window.filled_SL
    window.length_S = length_S


def _to_slots(layout: RowLayout, value_SR: Tensor) -> Tensor:
    """Values of physical rows -> values of window slots ``[S, L]`` (the head's is left out)."""
    width = layout.order_SL.shape[1]
    place_SL = torch.arange(width, device=value_SR.device) + layout.has_head_S[:, None].to(torch.int64)
    return to_logical(layout.order_SL, value_SR.gather(1, place_SL))


def _through_stop(window: Window, params: WindowParams) -> Tensor:
    """Which slots ``[S, L]`` stand up to and including the first filled stop token."""
    stop_SL = (window.token_SL[:, :, None] == params.stop_SK[:, None, :]).any(-1) & window.filled_SL
    return stop_SL.to(torch.int64).cumsum(dim=-1) - stop_SL.to(torch.int64) == 0


class VerifiedDecoding:
    """Masks draft, the next-token head verifies: autoregressive output (design, section 6)."""

    head = True
    suppresses = False

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Drafts are kept as allocated, up to ``max_tokens`` and a stop token; masks follow where useful."""
        slot_L = _slots(window)
        left_S = (params.limit_S - window.emitted_S).clamp(min=0)
        most_S = torch.minimum(torch.where(window.valid_S, params.keep_valid_S, params.keep_stale_S), left_S)
        keep_SL = (slot_L < most_S[:, None]) & _through_stop(window, params)
        drafts_S = leading_run(window.filled_SL & keep_SL)
        last = (drafts_S - 1).clamp(min=0)[:, None]
        last_is_stop_S = (window.token_SL.gather(1, last) == params.stop_SK).any(-1) & (drafts_S > 0)
        masks_S = torch.where(last_is_stop_S, 0, torch.minimum(params.window_S, left_S - drafts_S))
        _mask_from(window, slot_L < drafts_S[:, None], drafts_S + masks_S, mask_id)
        window.lead_S = drafts_S

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Head and drafts verify their successor; masks propose."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        next_SR = row_R <= window.lead_S[:, None]
        return Wanted(next_SR=next_SR, self_SR=~next_SR & (row_R < layout.count_S[:, None]))

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the agreeing drafts and the head's choice after them; the rest are the next drafts."""
        slot_L, drafts_S = _slots(window), window.lead_S
        draft_SL = slot_L < drafts_S[:, None]
        right_SL = draft_SL & (window.token_SL == choices.token_SR[:, :-1])
        agreed_S = leading_run(right_SL)
        count_S = agreed_S + 1
        # Physical order is logical here, so row j + 1 holds slot j; a mask's row holds its own proposal.
        token_SL = torch.where(draft_SL, window.token_SL, choices.token_SR[:, 1:])
        window.filled_SL = slot_L < (window.length_S - count_S)[:, None]
        window.head_S = choices.token_SR.gather(1, agreed_S[:, None]).squeeze(1)
        # The first mask proposes for the slot that the last draft's row decides: a test of the proposals behind it.
        first_S = token_SL.gather(1, drafts_S.clamp(max=slot_L.shape[0] - 1)[:, None]).squeeze(1)
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
            fill_SL=~draft_SL & (slot_L < window.length_S[:, None]),
        )


class WindowDecoding:
    """The published rule with a fixed window (design, section 4); with ``block`` a stop-and-wait block."""

    head = False
    suppresses = False

    def __init__(self, *, block: bool) -> None:
        self.block = block

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Append as many masks as the next forward commits, so that W slots remain after it."""
        slot_L = _slots(window)
        in_window_SL = slot_L < params.window_S[:, None]
        lead_S = leading_run(window.filled_SL & in_window_SL)
        if self.block:
            lead_S = torch.where(lead_S == params.window_S, lead_S, 0)
        _mask_from(window, in_window_SL, params.window_S + lead_S, mask_id)
        window.lead_S = lead_S

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Masks only."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        filled_S1 = window.filled_SL.sum(dim=-1, keepdim=True)
        masks_SR = (row_R >= filled_S1) & (row_R < layout.count_S[:, None])
        return Wanted(next_SR=torch.zeros_like(masks_SR), self_SR=masks_SR)

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the leading filled slots, fill masks by penalised entropy."""
        slot_L, lead_S = _slots(window), window.lead_S
        mask_SL = ~window.filled_SL & (slot_L < window.length_S[:, None])
        entropy_SL = _to_slots(layout, choices.entropy_SR)
        fill_SL = select_fills(entropy_SL, mask_SL, params.threshold_S, params.penalty_S)
        commit = _commit_leading(window, lead_S, fill_SL)
        _fill(window, fill_SL, _to_slots(layout, choices.token_SR), entropy_SL)
        _move_on(window, lead_S)
        window.emitted_S = window.emitted_S + lead_S
        return commit


class StreamingDecoding:
    """The published rule plus what costs nothing (design, section 5), part by part as the switches say.

    The last contiguous row fills the leftmost slot through the next-token head, so every step commits; masks
    behind it are filled by penalised entropy with a price on holes and without a fallback; the window is
    clipped at ``max_tokens`` and behind a filled stop token; the mask id is never chosen.
    """

    head = True

    def __init__(self, switches: StreamingSwitches) -> None:
        self.switches = switches
        self.suppresses = switches.suppress

    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Refill to W masks and filled slots behind the leading run, clipped."""
        slot_L = _slots(window)
        lead_S = leading_run(window.filled_SL)
        length_S = params.window_S + lead_S
        if self.switches.clip:
            left_S = (params.limit_S - window.emitted_S).clamp(min=0)
            before_stop_S = _through_stop(window, params).sum(dim=-1)
            length_S = torch.minimum(torch.minimum(length_S, left_S), before_stop_S)
        _mask_from(window, slot_L < length_S[:, None], length_S, mask_id)
        window.lead_S = torch.minimum(lead_S, length_S)

    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """The last contiguous row chooses the leftmost slot; every later mask proposes its own."""
        row_R = torch.arange(layout.id_SR.shape[1], device=layout.id_SR.device)
        filled_S1 = window.filled_SL.sum(dim=-1, keepdim=True)
        chooses_S1 = self._head_chooses(window)[:, None]
        # The leftmost mask is the first mask row; the next-token head fills its slot.
        masks_SR = (row_R > filled_S1 + chooses_S1) & (row_R < layout.count_S[:, None])
        return Wanted(next_SR=(row_R == window.lead_S[:, None]) & chooses_S1, self_SR=masks_SR)

    def _head_chooses(self, window: Window) -> Tensor:
        """Bool ``[S]``: whether the next-token head gives the leftmost slot in this forward.

        It does in a window of no slots, whatever the switches say: there is no mask that could.
        """
        first_S = window.emitted_S == 0
        chooses_S = torch.where(first_S, self.switches.prefill_token, self.switches.head_fills_leftmost)
        return chooses_S | (window.length_S == 0)

    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit the leading run and the head's token after it; fill where certainty pays for the hole."""
        slot_L, lead_S = _slots(window), window.lead_S
        row_S1, chooses_S = lead_S[:, None], self._head_chooses(window)
        count_S = lead_S + chooses_S
        chosen_S = choices.token_SR.gather(1, row_S1).squeeze(1)
        last_S = window.token_SL.gather(1, (row_S1 - 1).clamp(min=0)).squeeze(1)
        mask_SL = ~window.filled_SL & (slot_L < window.length_S[:, None])
        candidate_SL = mask_SL & (slot_L >= count_S[:, None])
        entropy_SL = _to_slots(layout, choices.entropy_SR)
        fill_SL = self._accept(entropy_SL, candidate_SL, params, chooses_S)
        commit = _commit_leading(window, lead_S, fill_SL)
        slot_SC = torch.arange(commit.token_SC.shape[1], device=slot_L.device)
        place_SC = (slot_SC == row_S1) & chooses_S[:, None]
        commit = Commit(
            token_SC=torch.where(place_SC, chosen_S[:, None], commit.token_SC),
            entropy_SC=torch.where(place_SC, choices.entropy_SR.gather(1, row_S1), commit.entropy_SC),
            logprob_SC=commit.logprob_SC,
            early_SC=commit.early_SC & ~place_SC,
            count_S=count_S,
            drafts_S=commit.drafts_S,
            agreed_S=lead_S,
            offered_S=torch.minimum(params.window_S, window.length_S),
            valid_S=window.valid_S,
            next_valid_S=window.valid_S,
            # The head's KV is final; where it chose nothing, the last committed token is the next head.
            context_S=count_S,
            fill_SL=fill_SL,
        )
        upto_S1 = (count_S - 1)[:, None]
        _fill(window, fill_SL, _to_slots(layout, choices.token_SR), entropy_SL, upto_S1=upto_S1)
        _move_on(window, count_S)
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
            # Masks alone have to get on, so a forward that fills nothing fills what is most certain.
            smallest_SL = torch.zeros_like(fill_SL).scatter_(-1, priced_SL.argmin(dim=-1, keepdim=True), True)
            falls_S = ~fill_SL.any(dim=-1) & (~chooses_S | self.switches.fallback)
            fill_SL = fill_SL | (smallest_SL & candidate_SL & falls_S[:, None])
        return fill_SL


def _commit_leading(window: Window, lead_S: Tensor, fill_SL: Tensor) -> Commit:
    """The commit of the first ``lead_S`` window slots, one place wider than the window."""
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


def _fill(window: Window, fill_SL: Tensor, token_SL: Tensor, entropy_SL: Tensor, upto_S1: Tensor | int = -1) -> None:
    """Put chosen tokens in the slots of ``fill_SL`` and note which came before an earlier slot.

    ``upto_S1``: slots up to this one count as filled (``streaming`` fills it through the next-token head).
    """
    slot_L = _slots(window)
    window.token_SL = torch.where(fill_SL, token_SL, window.token_SL)
    window.entropy_SL = torch.where(fill_SL, entropy_SL, window.entropy_SL)
    window.filled_SL = window.filled_SL | fill_SL
    open_SL = (~window.filled_SL & (slot_L > upto_S1)).to(torch.int64)
    window.early_SL = window.early_SL | (fill_SL & (open_SL.cumsum(dim=-1) > 0))


def _move_on(window: Window, count_S: Tensor) -> None:
    """Drop the committed slots from the left."""
    window.token_SL = shift_left(window.token_SL, count_S, 0)
    window.filled_SL = shift_left(window.filled_SL, count_S, False)
    window.entropy_SL = shift_left(window.entropy_SL, count_S, 0.0)
    window.early_SL = shift_left(window.early_SL, count_S, False)


_VERIFIED = VerifiedDecoding()
_DECODINGS: dict[Strategy, Decoding] = {
    Strategy.VERIFIED: _VERIFIED,
    Strategy.AUTOREGRESSIVE: _VERIFIED,
    Strategy.REFERENCE: WindowDecoding(block=False),
    Strategy.BLOCKWISE: WindowDecoding(block=True),
}
_streaming = functools.lru_cache(maxsize=64)(StreamingDecoding)


def decoding_of(strategy: Strategy, switches: StreamingSwitches) -> Decoding:
    """The implementation of a strategy; strategies that share one are advanced together."""
    return _streaming(switches) if strategy == Strategy.STREAMING else _DECODINGS[strategy]
