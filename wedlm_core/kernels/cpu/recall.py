"""Drafts from history in windows: what they are worth beside those of masks, and windows that hold both.

One pass per sequence in place of operations on small arrays. Results equal those of
``testing/engine/recall_oracle.py``; :mod:`wedlm_core.engine.history_drafts` says what is decided.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import DraftSource

__all__ = ["Worth", "best_prefixes", "cut_at_stops", "fill_windows", "find_broken", "open_windows", "weigh_sources"]

Array = np.ndarray[Any, np.dtype[Any]]

_MASK, _HISTORY = int(DraftSource.MASK), int(DraftSource.HISTORY)


class Worth(NamedTuple):
    """What the drafts of G windows are worth, float64 but for ``replaces``.

    ``acceptance [G, D]``: of history's drafts as many as are worth most together, 0 behind them. ``value [G]``: commits
    that the masks' drafts bring. ``reached [G]``: probability that all of these are accepted. ``later [G]``: commits
    that the masks behind bring in the forward after the next one. ``replaces`` bool ``[G]``: history alone is better.
    """

    acceptance: Array
    value: Array
    reached: Array
    later: Array
    replaces: Array


@kernel
def cut_at_stops(token, acceptance, counts, stops):  # type: ignore[no-untyped-def]
    """Set acceptance to 0 behind the last draft of a proposal and behind a stop token.

    Args:
        token: int32 ``[G, D]``.
        acceptance: float32 ``[G, D]``, changed.
        counts: int64 ``[G]``, drafts proposed.
        stops: int64 ``[G, K]``, -1 behind the last.
    """
    for g in range(len(counts)):
        kept = counts[g]
        for j in range(counts[g]):
            if _is_among(stops[g], token[g, j]):
                kept = j + 1
                break
        for j in range(kept, acceptance.shape[1]):
            acceptance[g, j] = 0.0


@kernel
def _is_among(tokens, token):  # type: ignore[no-untyped-def]
    for one in tokens:  # noqa: SIM110  # Numba compiles no generators here
        if one == token:
            return True
    return False


@kernel
def find_broken(slots, count, offered, source, broken):  # type: ignore[no-untyped-def]
    """Find windows with drafts of history behind a wrong one, which follow what is not there; all count as masks' then.

    Args:
        slots: int64 ``[G]``.
        count: int64 ``[G]``, tokens that were committed.
        offered: int64 ``[G]``, drafts of the forward.
        source: int8 ``[slots, L]``, where each of them came from, cleared.
        broken: bool ``[G]``, written.

    Returns:
        Whether any is.
    """
    found = False
    for g in range(len(slots)):
        own = source[slots[g]]
        broken[g] = False
        for j in range(count[g], min(offered[g], len(own))):
            broken[g] = broken[g] or own[j] == _HISTORY
        own[:] = _MASK
        found = found or broken[g]
    return found


@kernel
def open_windows(token, lead, length, broken, planned, most, stops, drafts, masks, ends):  # type: ignore[no-untyped-def]
    """What windows hold before history's drafts; those of broken windows are dropped.

    Args:
        token: int64 ``[G, L]``.
        lead: int64 ``[G]``, drafts.
        length: int64 ``[G]``, drafts and masks.
        broken: bool ``[G]``.
        planned: int64 ``[G]``, masks that are planned, negative where none were yet.
        most: int64 ``[G]``, drafts and masks at most.
        stops: int64 ``[G, K]``.
        drafts: int64 ``[G]``, written: drafts that stay.
        masks: int64 ``[G]``, written.
        ends: bool ``[G]``, written: the last draft that stays is a stop token.
    """
    for g in range(len(lead)):
        ends[g] = not broken[g] and lead[g] > 0 and _is_among(stops[g], token[g, lead[g] - 1])
        drafts[g] = 0 if broken[g] else lead[g]
        masks[g] = min(max(planned[g], 0), most[g]) if broken[g] else length[g] - lead[g]


@kernel
def weigh_sources(slots, valid, drafts, masks, by_masks, offered, price, worth):  # type: ignore[no-untyped-def]
    """What masks' drafts and history's are worth, where one or the other follows the committed tokens.

    Args:
        slots: int64 ``[G]``.
        valid: bool ``[G]``, the prefix of the masks' drafts is.
        drafts: int64 ``[G]``, from masks.
        masks: int64 ``[G]``, behind the drafts.
        by_masks: float64 ``[2, slots, W]``, probability that masks' drafts up to each offset are accepted (stale ones,
            valid ones).
        offered: float32 ``[G, D]``, that of history's drafts, 0 behind the last.
        price: commits that a row has to bring.
        worth: :class:`Worth`, written.
    """
    width = by_masks.shape[2]
    for g in range(len(slots)):
        own, following = by_masks[np.int64(valid[g]), slots[g]], by_masks[1, slots[g]]
        value, reached, later = 0.0, 1.0, 0.0
        for j in range(min(drafts[g], width)):
            value += own[j]
            reached = own[j]
        for j in range(min(masks[g], width)):
            later += following[j]
        best = _best_prefix(offered[g], 1.0, later, price, worth.acceptance[g])
        worth.value[g], worth.reached[g], worth.later[g] = value, reached, later
        worth.replaces[g] = drafts[g] == 0 or best > value - price * drafts[g] + reached * later


@kernel
def best_prefixes(lines, offered, price, worth):  # type: ignore[no-untyped-def]
    """``worth.acceptance`` of windows whose history drafts follow those of masks.

    Args:
        lines: int64 ``[N]``, the windows.
        offered: float32 ``[N, D]``, acceptance of their drafts if those of masks are accepted; changed.
        price: commits that a row has to bring.
        worth: :class:`Worth`, changed.
    """
    for n in range(len(lines)):
        g = lines[n]
        for j in range(offered.shape[1]):
            offered[n, j] *= worth.reached[g]
        _best_prefix(offered[n], worth.reached[g], worth.later[g], price, worth.acceptance[g])


@kernel
def _best_prefix(acceptance, reached, later, price, out):  # type: ignore[no-untyped-def]
    """How many drafts to take, as masks behind them propose in vain if one is wrong.

    Args:
        acceptance: ``[D]``, probability that a draft and all before it are accepted, 0 behind the last.
        reached: probability that all drafts before the first are.
        later: commits that the masks behind bring later if all drafts are accepted.
        price: commits that a row has to bring.
        out: float64 ``[D]``, written: acceptance of the drafts taken, 0 behind them.

    Returns:
        Commits that they bring, in this forward and by the masks behind them, less the price of their rows.
    """
    best, taken, gained = reached * later, 0, 0.0
    for j in range(len(acceptance)):
        if acceptance[j] <= 0:
            break
        gained += acceptance[j] - price
        if gained + acceptance[j] * later > best:
            best, taken = gained + acceptance[j] * later, j + 1
    for j in range(len(acceptance)):
        out[j] = acceptance[j] if j < taken else 0.0
    return best


@kernel
def _paying_masks(by_masks, reached, price):  # type: ignore[no-untyped-def]
    """Masks that pay, two rows each, behind drafts that are all accepted with probability ``reached``."""
    best, paying, gained = 0.0, 0, 0.0
    for j in range(len(by_masks)):
        gained += by_masks[j]
        net = reached * gained - 2 * price * (j + 1)
        if net > best:
            best, paying = net, j + 1
    return paying


@kernel
def fill_windows(  # type: ignore[no-untyped-def]
    slots, worth, threshold, price, offered, by_masks, most, stops, mask, token, drafts, masks, lead, length, source
):
    """Windows with the drafts of history that were bought, and behind them the masks that still pay.

    Args:
        slots: int64 ``[G]``.
        worth: :class:`Worth`.
        threshold: history's drafts that are at least as likely were bought.
        price: commits that a row has to bring.
        offered: int32 ``[G, D]``, drafts of history.
        by_masks: as for :func:`weigh_sources`.
        most: int64 ``[G]``, drafts and masks at most.
        stops: int64 ``[G, K]``.
        mask: its id.
        token: int64 ``[G, L]``, changed: drafts, and the mask behind them.
        drafts: int64 ``[G]``, that were there from masks.
        masks: int64 ``[G]``, that were there.
        lead: int64 ``[G]``, written: drafts.
        length: int64 ``[G]``, written: drafts and masks.
        source: int8 ``[G, L]``, written.
    """
    for g in range(len(slots)):
        bought, reached = 0, 1.0
        while bought < offered.shape[1] and worth.acceptance[g, bought] >= threshold:
            reached = worth.acceptance[g, bought]
            bought += 1
        kept, behind = drafts[g], masks[g]
        if bought > 0:
            kept = 0 if worth.replaces[g] else kept
            behind = min(behind, _paying_masks(by_masks[1, slots[g]], reached, price))
        bought = min(bought, max(most[g] - kept, 0))
        lead[g] = kept + bought
        for j in range(token.shape[1]):
            recalled = kept <= j < lead[g]
            source[g, j] = _HISTORY if recalled else _MASK
            if recalled:
                token[g, j] = offered[g, j - kept]
            elif j >= lead[g]:
                token[g, j] = mask
        if lead[g] > 0 and _is_among(stops[g], token[g, lead[g] - 1]):
            behind = 0
        length[g] = lead[g] + min(behind, max(most[g] - lead[g], 0))
