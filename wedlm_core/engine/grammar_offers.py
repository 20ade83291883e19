"""What history proposes to sequences with a grammar, where that is likelier to be right than what masks propose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.history_drafts import LEAST_ACCEPTANCE, Suggestions
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.kernels.cpu.grammar_walk import Drafted
from wedlm_core.statistics import DraftSource

__all__ = ["Offers", "offers_of"]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What history proposes to G sequences.

    Attributes:
        paying_G: proposals that are worth a row; 0 where masks' are better.
        token_GD: int64.
        acceptance_GD: probability that each and all before it are accepted.
        instead_G: commits that were expected of masks' proposals, less those that their rows cost.
    """

    paying_G: IntArray
    token_GD: IntArray
    acceptance_GD: np.ndarray
    instead_G: np.ndarray

    def saved_seconds(self, planner: WindowPlanner, drafted: Drafted, goes_on_G: BoolArray) -> float:
        """By how much the commits that are expected of history's drafts come earlier, less what their rows cost.

        Where the grammar forces a token, or forbids what history proposes, history gave nothing.
        """
        own_G = goes_on_G & (self.paying_G > 0)
        if not own_G.any():
            return 0.0
        width = self.token_GD.shape[1]
        there_GD = np.arange(width) < np.minimum(drafted.lead, width)[:, None]
        given_GD = own_G[:, None] & there_GD & (drafted.source_GL[:, :width] == DraftSource.HISTORY)
        gained = float(self.acceptance_GD[given_GD].sum()) - planner.row_price * float(given_GD.sum())
        return planner.seconds_of(gained - float(self.instead_G[own_G].sum()))


def offers_of(
    found: Suggestions | None, planner: WindowPlanner, slots_G: IntArray, valid_G: BoolArray, kept_G: IntArray
) -> Offers:
    """Choose between what history and masks propose.

    Args:
        found: what history proposes for some slots.
        planner: prices rows, and knows how likely masks' drafts are accepted.
        slots_G: of the sequences.
        valid_G: whether the prefix of masks' proposals is valid.
        kept_G: how many of these may become drafts.
    """
    paying_G, instead_G = np.zeros(len(slots_G), dtype=np.int64), np.zeros(len(slots_G))
    line_G = np.zeros(0, dtype=np.int64) if found is None else _lines(found.slots_D, slots_G)
    if found is None or not (line_G >= 0).any():
        nothing = np.zeros((len(slots_G), 1))
        return Offers(paying_G=paying_G, token_GD=nothing.astype(np.int64), acceptance_GD=nothing, instead_G=instead_G)
    acceptance_GD = np.where((line_G >= 0)[:, None], found.acceptance_DP[line_G], 0.0)
    pays_GD = acceptance_GD >= max(planner.row_price, LEAST_ACCEPTANCE)  # it falls along a sequence
    masks_GW = planner.mask_acceptance(slots_G, valid_G)
    promised_G = np.where(np.arange(masks_GW.shape[1]) < kept_G[:, None], masks_GW, 0.0).sum(axis=1)
    better_G = np.where(pays_GD, acceptance_GD, 0.0).sum(axis=1) > promised_G
    paying_G[better_G] = pays_GD[better_G].sum(axis=1)
    instead_G[better_G] = (promised_G - planner.row_price * kept_G)[better_G]
    return Offers(
        paying_G=paying_G, token_GD=found.token_DP[line_G].astype(np.int64), acceptance_GD=acceptance_GD,
        instead_G=instead_G,
    )  # fmt: skip


def _lines(of_F: IntArray, slots_G: IntArray) -> IntArray:
    """The place of each slot among others, which are different; -1 where it is not there."""
    place_S = np.full(max(int(of_F.max(initial=0)), int(slots_G.max())) + 1, -1, dtype=np.int64)
    place_S[of_F] = np.arange(len(of_F))
    return place_S[slots_G]
