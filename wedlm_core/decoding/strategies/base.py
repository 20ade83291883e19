"""The interface of strategies: traits, three vectorised functions, and the values that they pass.

``refill`` sets up the next forward's window, ``wanted`` names the rows that need logits and their kind, ``advance``
turns choices into commits and the remaining window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams
from wedlm_core.ordering import to_logical
from wedlm_core.types import Strategy

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


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
    """The commits of a forward, in logical order; C = R places, the first ``count_S`` in use.

    Attributes:
        token_SC: int64.
        entropy_SC: float32 nats.
        logprob_SC: float32 nats under the next-token head; NaN where the strategy has none.
        early_SC: bool, filled out of order.
        count_S: int64; may run past ``max_tokens`` or a stop token: the caller cuts.
        drafts_S, agreed_S: int64, drafts verified in this forward, and those that were right.
        offered_S: int64, window places that this forward could have committed after the first token; it committed
            ``agreed_S`` of them (``verified``: the drafts; ``streaming``: the window).
        valid_S: bool, :attr:`Window.valid_S` of those places.
        next_valid_S: bool, the same of the remaining window.
        context_S: int64, tokens whose KV became final.
        fill_SL: bool, window places (before the shift) filled by this forward.
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


@dataclass(frozen=True, kw_only=True)
class Refills:
    """The host's data for refilling the windows of D sequences at the end of a forward; int64 each.

    Attributes:
        masks_D: masks of the window that follows.
        kept_D: drafts that it keeps at most.
        widest_D: masks of any window of the sequence.
    """

    masks_D: IntArray
    kept_D: IntArray
    widest_D: IntArray


class Decoding(ABC):
    """One way of decoding, for sequences of one strategy or more. Stateless; equal where the options are equal.

    The engine asks for these traits and never for a strategy by name.

    Attributes:
        head: sequences keep a head token (:mod:`wedlm_core.decoding.window_state`).
        verifies: masks become drafts, which a later forward verifies; every forward commits one token at least.
        clips: windows end at ``max_tokens``.
        suppresses: the mask id and padded vocabulary are never chosen.
        has_kernels: kernels pack and advance these windows too, with equal results (:mod:`wedlm_core.kernels.cpu.step`,
            :mod:`wedlm_core.kernels.gpu.step_gpu`).
    """

    head: bool = False
    verifies: bool = False
    clips: bool = False
    suppresses: bool = False
    has_kernels: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> Decoding:
        """The decoding with an engine's options."""
        return cls()

    @abstractmethod
    def refill(self, window: Window, params: WindowParams, mask_id: int) -> None:
        """Append masks and set ``length_S`` and ``lead_S`` for the next forward, in place."""

    @abstractmethod
    def wanted(self, window: Window, layout: RowLayout) -> Wanted:
        """Rows of the forward that need logits."""

    @abstractmethod
    def advance(self, window: Window, params: WindowParams, layout: RowLayout, choices: RowChoices) -> Commit:
        """Commit, and move ``window`` on in place (not yet refilled)."""

    def next_rows(self, refills: Refills, rows_D: IntArray, left_D: IntArray) -> IntArray:
        """Upper bound of the decode rows of the next forward, known before this forward has run.

        Args:
            refills: of this forward.
            rows_D: its decode rows, or a bound of them.
            left_D: tokens that each sequence may still generate before it, or a bound.

        Returns:
            int64; 0 where the forward surely ends the sequence.
        """
        # At most the former masks stay in the window.
        after_D = refills.masks_D + np.minimum(refills.widest_D, rows_D - self.head)
        return (np.minimum(after_D, np.maximum(left_D, 0)) if self.clips else after_D) + self.head

    def wanted_rows(self, refills: Refills, rows_D: IntArray) -> IntArray:
        """Upper bound of the rows of this forward that need logits: the masks, and the head's if it exists."""
        return np.minimum(rows_D, refills.widest_D + self.head)


_REGISTRY: dict[Strategy, type[Decoding]] = {}


def decodes(*strategies: Strategy) -> Callable[[type[Any]], type[Any]]:
    """Class decorator: the class implements these strategies."""

    def register(cls: type[Any]) -> type[Any]:
        _REGISTRY.update(dict.fromkeys(strategies, cls))
        return cls

    return register


def decoding_of(strategy: Strategy, config: EngineConfig) -> Decoding:
    """The implementation of a strategy; strategies whose implementations are equal are advanced together."""
    return _REGISTRY[strategy].of(config)


def places_of(window: Window) -> Tensor:
    """int64 ``[L]``: the places of a window."""
    return torch.arange(window.token_SL.shape[1], device=window.token_SL.device)


def mask_from(window: Window, keep_SL: Tensor, length_S: Tensor, mask_id: int) -> None:
    """Keep the filled places under ``keep_SL``, make every other place a mask, set the length."""
    window.filled_SL &= keep_SL
    window.token_SL = torch.where(window.filled_SL, window.token_SL, mask_id)
    window.early_SL &= window.filled_SL
    window.length_S = length_S


def to_places(layout: RowLayout, value_SR: Tensor) -> Tensor:
    """Values of physical rows -> values of window places ``[S, L]`` (the head's is left out)."""
    width = layout.order_SL.shape[1]
    place_SL = torch.arange(width, device=value_SR.device) + layout.has_head_S[:, None].to(torch.int64)
    return to_logical(layout.order_SL, value_SR.gather(1, place_SL))


def through_stop(window: Window, params: WindowParams) -> Tensor:
    """Which places ``[S, L]`` stand up to and including the first filled stop token."""
    stop_SL = (window.token_SL[:, :, None] == params.stop_SK[:, None, :]).any(-1) & window.filled_SL
    return stop_SL.to(torch.int64).cumsum(dim=-1) - stop_SL.to(torch.int64) == 0
