"""Windows with drafts from history in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.recall`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.kernels.cpu.recall import Worth
from wedlm_core.statistics import DraftSource

__all__ = ["OpenWindows", "best_prefix", "broken", "filled", "opened", "within", "worth_of"]

Array = np.ndarray


def within(token_GD: Array, acceptance_GD: Array, count_G: Array, stop_GK: Array) -> Array:
    """Acceptance of a proposal's drafts, 0 behind its last and behind a stop token."""
    known_GD = np.arange(token_GD.shape[1]) < count_G[:, None]
    stop_GD = (token_GD[:, :, None] == stop_GK[:, None, :]).any(axis=2) & known_GD
    behind_GD = stop_GD.cumsum(axis=1) - stop_GD > 0
    return np.where(known_GD & ~behind_GD, acceptance_GD, np.float32(0))


def broken(source_GL: Array, count_G: Array, offered_G: Array) -> Array:
    """Windows with a draft of history that is left behind a wrong one."""
    place_L = np.arange(source_GL.shape[1])
    gone_GL = (place_L >= count_G[:, None]) & (place_L < offered_G[:, None])
    return ((source_GL == DraftSource.HISTORY) & gone_GL).any(axis=1)


@dataclass(frozen=True, kw_only=True)
class OpenWindows:
    """What windows hold before history's drafts."""

    drafts_G: Array
    masks_G: Array
    ends_G: Array


def opened(
    token_GL: Array, lead_G: Array, length_G: Array, broken_G: Array, planned_G: Array, most_G: Array, stop_GK: Array
) -> OpenWindows:
    """Windows, those of ``broken_G`` without their drafts."""
    last_G = np.take_along_axis(token_GL, np.maximum(lead_G - 1, 0)[:, None], axis=1)
    return OpenWindows(
        drafts_G=np.where(broken_G, 0, lead_G),
        masks_G=np.where(broken_G, np.minimum(np.maximum(planned_G, 0), most_G), length_G - lead_G),
        ends_G=(last_G == stop_GK).any(axis=1) & (lead_G > 0) & ~broken_G,
    )


def best_prefix(acceptance_GD: Array, reached_G: Array, later_G: Array, row_price: float) -> tuple[Array, Array]:
    """The drafts that are worth most together, 0 behind them, and what they are worth."""
    acceptance_GD = acceptance_GD.astype(np.float64)
    all_GD = np.concatenate([reached_G[:, None], acceptance_GD], axis=1)
    gained_GD = np.concatenate([np.zeros((len(reached_G), 1)), np.cumsum(acceptance_GD - row_price, axis=1)], axis=1)
    value_GD = gained_GD + all_GD * later_G[:, None]
    value_GD[:, 1:][acceptance_GD <= 0] = -np.inf
    most_G = value_GD.argmax(axis=1)
    kept_GD = np.arange(acceptance_GD.shape[1]) < most_G[:, None]
    return np.where(kept_GD, acceptance_GD, 0), np.take_along_axis(value_GD, most_G[:, None], axis=1)[:, 0]


def _first(value_GX: Array, count_G: Array) -> Array:
    """The value at each sequence's last of ``count_G`` places; 0 where that is none."""
    place_G = np.clip(count_G - 1, 0, value_GX.shape[1] - 1)
    return np.where(count_G > 0, np.take_along_axis(value_GX, place_G[:, None], axis=1)[:, 0], 0.0)


def worth_of(
    slots_G: Array, valid_G: Array, drafts_G: Array, masks_G: Array, by_masks_2SW: Array, offer_GD: Array, price: float
) -> Worth:
    """What masks' drafts and history's are worth."""
    own_GW, next_GW = by_masks_2SW[valid_G.astype(int), slots_G], by_masks_2SW[1, slots_G].cumsum(axis=1)
    later_G = _first(next_GW, np.minimum(masks_G, next_GW.shape[1]))
    value_G = _first(own_GW.cumsum(axis=1), drafts_G)
    reached_G = np.where(drafts_G > 0, _first(own_GW, drafts_G), 1.0)
    acceptance_GD, best_G = best_prefix(offer_GD, np.ones(len(slots_G)), later_G, price)
    replaces_G = (drafts_G == 0) | (best_G > value_G - price * drafts_G + reached_G * later_G)
    return Worth(acceptance_GD, value_G, reached_G, later_G, replaces_G)


def filled(
    slots_G: Array, worth: Worth, threshold: float, price: float, token_GD: Array, by_masks_2SW: Array, most_G: Array,
    stop_GK: Array, mask: int, token_GL: Array, drafts_G: Array, masks_G: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Tokens, drafts, places and sources of windows with the drafts of history that were bought."""
    bought_G = (worth.acceptance >= threshold).sum(axis=1)
    kept_G = np.where(worth.replaces & (bought_G > 0), 0, drafts_G)
    reached_G = np.where(bought_G > 0, _first(worth.acceptance, bought_G), 1.0)
    gain_GW = reached_G[:, None] * by_masks_2SW[1, slots_G].cumsum(axis=1)
    net_GW = np.concatenate(
        [np.zeros((len(slots_G), 1)), gain_GW - 2 * price * np.arange(1, gain_GW.shape[1] + 1)], axis=1
    )
    masks_G = np.where(bought_G > 0, np.minimum(masks_G, net_GW.argmax(axis=1)), masks_G)
    recalled_G = np.minimum(bought_G, np.maximum(most_G - kept_G, 0))
    lead_G, place_L = kept_G + recalled_G, np.arange(token_GL.shape[1])
    mine_GL = (place_L >= kept_G[:, None]) & (place_L < lead_G[:, None])
    from_GL = np.clip(place_L - kept_G[:, None], 0, token_GD.shape[1] - 1)
    token_GL = np.where(mine_GL, np.take_along_axis(token_GD, from_GL, axis=1), token_GL)
    token_GL = np.where(place_L < lead_G[:, None], token_GL, mask)
    last_G = np.take_along_axis(token_GL, np.maximum(lead_G - 1, 0)[:, None], axis=1)
    ends_G = (last_G == stop_GK).any(axis=1) & (lead_G > 0)
    masks_G = np.where(ends_G, 0, np.minimum(masks_G, np.maximum(most_G - lead_G, 0)))
    return token_GL, lead_G, lead_G + masks_G, np.where(mine_GL, DraftSource.HISTORY, DraftSource.MASK)
