"""What :mod:`wedlm_core.kernels.cpu.grammar_offers` computes, as operations on arrays."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.scheduling.slots import BoolArray, IntArray
from wedlm_core.kernels.cpu.grammar_columns import DONE, Drafted, Proposed
from wedlm_core.statistics import DraftSource

__all__ = ["paying_drafts", "saved"]


def _promised(proposed: Proposed, valid_D: BoolArray, by_masks_2SW: np.ndarray) -> np.ndarray:
    """float64 ``[G]``, commits that are expected of masks' proposals."""
    masks_GW = by_masks_2SW[valid_D[proposed.places].astype(np.int64), proposed.slots]
    return np.where(np.arange(masks_GW.shape[1]) < proposed.kept[:, None], masks_GW, 0.0).sum(axis=1)


def paying_drafts(
    proposed: Proposed, acceptance_DP: np.ndarray, valid_D: BoolArray, by_masks_2SW: np.ndarray, price: float,
    least: float,
) -> IntArray:  # fmt: skip
    """int64 ``[G]``, drafts of history that are worth a row, 0 where masks' are better."""
    acceptance_GP = acceptance_DP[proposed.places].astype(np.float64)
    pays_GP = acceptance_GP >= max(price, least)
    better_G = np.where(pays_GP, acceptance_GP, 0.0).sum(axis=1) > _promised(proposed, valid_D, by_masks_2SW)
    return np.where(better_G, pays_GP.sum(axis=1), 0)


def saved(
    proposed: Proposed, paying_G: IntArray, drafted: Drafted, acceptance_DP: np.ndarray, valid_D: BoolArray,
    by_masks_2SW: np.ndarray, price: float,
) -> float:  # fmt: skip
    """Commits that history's drafts bring over those of masks that they replace, less what rows cost."""
    own_G = proposed.goes_on & (drafted.outcome == DONE) & (paying_G > 0)
    acceptance_GP = acceptance_DP[proposed.places].astype(np.float64)
    width = min(acceptance_GP.shape[1], drafted.source_GL.shape[1])
    there_GP = np.arange(width) < drafted.lead[:, None]
    given_GP = own_G[:, None] & there_GP & (drafted.source_GL[:, :width] == DraftSource.HISTORY)
    gained = (acceptance_GP[:, :width][given_GP] - price).sum()
    instead_G = _promised(proposed, valid_D, by_masks_2SW) - price * proposed.kept
    return float(gained - instead_G[own_G].sum())
