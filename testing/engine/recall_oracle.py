"""Windows with drafts from history in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.recall`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from wedlm_core.kernels.cpu.purchase import Prices
from wedlm_core.kernels.cpu.recall import Worth
from wedlm_core.kernels.cpu.recall_step import Columns, Committed, Found, Windows

from wedlm_core.statistics import DraftSource

__all__ = [
    "OpenWindows", "PlacedWindows", "best_prefix", "bought", "broken", "filled", "least_row_price", "opened", "placed",
    "within", "worth_of",
]  # fmt: skip

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


def _seconds(prices: Prices, rows: Array) -> Array:
    """Seconds of steps of ``rows``, but for what is spared without drafts."""

    def table(of: Array) -> Array:
        last = (prices.seconds[-1] - prices.seconds[-2]) / (prices.knots[-1] - prices.knots[-2])
        beyond = prices.seconds[-1] + last * (of - prices.knots[-1])
        return np.where(of > prices.knots[-1], beyond, np.interp(of, prices.knots, prices.seconds))

    place = rows / prices.quantum + 0.5
    low, high = np.floor(place) * prices.quantum, (np.floor(place) + 1) * prices.quantum
    low_seconds, high_seconds = table(low) + prices.per_row * low, table(high) + prices.per_row * high
    return prices.fixed + low_seconds + (place - np.floor(place)) * (high_seconds - low_seconds)


def bought(prices: Prices, acceptance_GD: Array, commits: float, rows: float, spare: int) -> tuple[float, float]:
    """The likelihood from which on drafts are bought, and the price of one more row, by trying all numbers of rows."""
    likely_N = np.sort(acceptance_GD[acceptance_GD > 0])[::-1]
    most = int(max(0, min(len(likely_N), prices.most_rows - rows, spare)))
    total_N = commits + np.append(0.0, likely_N[:most].cumsum())
    seconds_N = _seconds(prices, rows + np.arange(most + 1.0))
    seconds_N[0] -= prices.spared_alone if rows <= prices.sequences else 0.0
    rate = float((total_N / seconds_N).max())
    if prices.seconds_per_commit > 0 and 1 / prices.seconds_per_commit > rate:
        rate, count, best = 1 / prices.seconds_per_commit, 0, -np.inf
        for number, worth in enumerate(total_N - rate * seconds_N):
            if worth > best + (1 - prices.near_optimal) * total_N[number]:
                count, best = number, worth
    else:
        count = int((total_N / seconds_N >= prices.near_optimal * rate).argmax())
    step = max(8.0, (rows + count) / 8, prices.quantum)
    here, there = _seconds(prices, np.array([rows + count, rows + count + step]))
    return float(likely_N[count - 1]) if count else np.inf, rate * (there - here) / step


def least_row_price(prices: Prices, rows: float, most: int) -> float:
    """Commits that each of 1, 2, 4 ... or ``most`` more rows has to bring, where that is least."""
    if not prices.seconds_per_commit:
        return 0.0
    counts = np.array([*(2.0**n for n in range(int(most).bit_length()) if 2**n < most), most])
    here = float(_seconds(prices, np.array([rows]))[0]) - (prices.spared_alone if rows <= prices.sequences else 0.0)
    each = (_seconds(prices, rows + counts) - here) / counts
    return max(0.0, float(each.min())) / prices.seconds_per_commit


@dataclass(frozen=True, kw_only=True)
class PlacedWindows:
    """Windows of the G sequences that go on and have no grammar: their slots, and what they hold now."""

    slots_G: Array
    token_GL: Array
    lead_G: Array
    length_G: Array
    source_GL: Array
    saved_seconds: float


def placed(
    forward: Committed, found: Found, propose: Callable[..., Found], columns: Columns, windows: Windows,
    by_masks_2SW: Array, prices: Prices, least: float, running: Array, spare: int, mask: int,
) -> PlacedWindows:  # fmt: skip
    """What :func:`wedlm_core.kernels.cpu.recall_step.place` does, on copies.

    ``propose`` gives what history proposes to slots behind drafts: of slots, drafts at most, the tokens before, and how
    many of these there are.
    """
    own_G = np.flatnonzero(forward.lives & columns.recalls[forward.slots] & ~columns.constrained[forward.slots])
    slots_G, at_G = forward.slots[own_G], windows.place[own_G]
    token_GL, lead_G, length_G = windows.token[at_G], windows.lead[at_G], windows.length[at_G]
    broken_G = broken(columns.source[slots_G], forward.committed[own_G], forward.offered[own_G])
    stop_GK = columns.stop_ids[slots_G]
    most_G = np.minimum(2 * columns.widest[slots_G], columns.limit[slots_G] - columns.generated[slots_G])
    before = opened(token_GL, lead_G, length_G, broken_G, columns.masks[slots_G], most_G, stop_GK)
    drafts_G, masks_G, width = before.drafts_G, before.masks_G, found.acceptance.shape[1]
    token_GD, known_GD = found.token[own_G].copy(), found.acceptance[own_G] > 0
    rows_before, known = int(columns.rows[running].sum()), int(known_GD.sum())
    price = least_row_price(prices, rows_before, known) if known else 0.0
    rows = int(columns.rows[running].sum() - columns.rows[slots_G].sum() + (1 + drafts_G + masks_G).sum())
    worth = worth_of(
        slots_G, forward.next_valid[own_G], drafts_G, masks_G, by_masks_2SW, found.acceptance[own_G], price
    )
    threshold, offered = np.inf, known > 0 and bool((found.acceptance[own_G] >= max(least, price)).any())
    if offered:
        behind = np.flatnonzero(~worth.replaces)
        if len(behind):
            room = np.where(before.ends_G[behind], 0, np.maximum(most_G[behind] - drafts_G[behind], 0))
            more = propose(slots_G[behind], room, token_GL[behind], drafts_G[behind])
            token_GD[behind] = more.token
            reached = worth.reached[behind]
            worth.acceptance[behind] = best_prefix(
                (more.acceptance * reached[:, None]).astype(np.float32), reached, worth.later[behind], price
            )[0]
        likeliest, price = bought(
            prices, worth.acceptance, len(running) + float(worth.value[behind].sum()),
            rows - int(drafts_G[worth.replaces].sum()), spare,
        )  # fmt: skip
        threshold = max(likeliest, least)
    else:
        worth = worth._replace(acceptance=np.zeros((len(own_G), max(1, width))))
        token_GD = np.zeros((len(own_G), max(1, width)), dtype=np.int32)
    if not offered and not broken_G.any():  # nothing changes
        none_GL = np.full((len(own_G), columns.source.shape[1]), DraftSource.MASK)
        return PlacedWindows(
            slots_G=slots_G, token_GL=token_GL, lead_G=lead_G, length_G=length_G, source_GL=none_GL, saved_seconds=0.0
        )
    token_GL, lead_G, length_G, source_GL = filled(
        slots_G, worth, threshold, price, token_GD, by_masks_2SW, most_G, stop_GK, mask, token_GL, drafts_G, masks_G
    )
    commits, after = 0.0, rows
    for g, slot in enumerate(slots_G):
        after += int(length_G[g] - drafts_G[g] - masks_G[g])
        recalled = int((source_GL[g] == DraftSource.HISTORY).sum())
        if recalled:
            later = float(by_masks_2SW[1, slot, : length_G[g] - lead_G[g]].sum())
            now = float(worth.acceptance[g, :recalled].sum()) + (0.0 if worth.replaces[g] else float(worth.value[g]))
            commits += now + float(worth.acceptance[g, recalled - 1]) * later
            commits -= float(worth.value[g] + worth.reached[g] * worth.later[g])
    saved = 0.0
    if (source_GL == DraftSource.HISTORY).any():
        wider, narrow = _seconds(prices, np.array([float(after), float(rows)]))
        narrow -= prices.spared_alone if rows <= prices.sequences else 0.0
        saved = commits * prices.seconds_per_commit - float(wider - narrow)
    return PlacedWindows(
        slots_G=slots_G, token_GL=token_GL, lead_G=lead_G, length_G=length_G, source_GL=source_GL, saved_seconds=saved
    )
