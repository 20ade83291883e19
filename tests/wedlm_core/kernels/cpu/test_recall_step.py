"""A step of history in two passes: as its parts do it one after the other, and as search over all choices does."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine import recall_oracle as oracle
from wedlm_core.engine.history import History
from wedlm_core.kernels.cpu.purchase import Prices, buy_rows, least_row_price
from wedlm_core.kernels.cpu.recall import cut_at_stops
from wedlm_core.kernels.cpu.recall_step import Columns, Committed, Found, Windows, follow, place
from wedlm_core.statistics import DraftSource

SLOTS, WIDTH, DRAFTS, PLACES, MASK = 6, 5, 6, 10, 3
SEEDS = st.integers(0, 2**32 - 1)


def history_of(rng: np.random.Generator) -> History:
    """Texts of few tokens, so that they repeat, and finished rows."""
    history = History(SLOTS, DRAFTS, most_ahead=PLACES, max_bytes=1 << 16)
    history.remember(
        [(tuple(rng.integers(4, 7, 5).tolist()), tuple(rng.integers(4, 7, 30).tolist())) for _ in range(3)]
    )
    for slot in range(SLOTS - 1):  # the last has no text
        history.open(slot, rng.integers(4, 7, int(rng.integers(1, 60))))
    return history


def columns_of(rng: np.random.Generator) -> Columns:
    generated = rng.integers(0, 9, SLOTS)
    return Columns(
        source=rng.integers(0, 3, (SLOTS, PLACES)).astype(np.int8), stop_ids=rng.integers(3, 9, (SLOTS, 2)),
        widest=rng.integers(0, WIDTH + 1, SLOTS), limit=generated + rng.integers(1, 12, SLOTS), generated=generated,
        rows=rng.integers(1, 9, SLOTS), masks=rng.integers(-1, WIDTH + 1, SLOTS), constrained=rng.random(SLOTS) < 0.2,
        recalls=np.arange(SLOTS) < SLOTS - 1,
    )  # fmt: skip


def prices_of(rng: np.random.Generator) -> Prices:
    knots = np.array([1.0, 4.0, 16.0, 64.0])
    return Prices(
        knots=knots, seconds=rng.uniform(0.5, 2.0, 4).cumsum(), quantum=float(rng.choice([1.0, 4.0])),
        fixed=float(rng.random()), per_row=float(rng.random() / 50), spared_alone=float(rng.random() / 4),
        sequences=float(rng.integers(1, 9)), most_rows=float(rng.integers(8, 99)), near_optimal=0.999,
        seconds_per_commit=float(rng.choice([0.0, rng.random()])),
    )  # fmt: skip


def found_of(rng: np.random.Generator, sequences: int, width: int = DRAFTS) -> Found:
    known_DP = np.arange(width) < rng.integers(0, width + 1, sequences)[:, None]
    acceptance_DP = np.where(known_DP, rng.random((sequences, width)).cumprod(axis=1), 0).astype(np.float32)
    return Found(rng.integers(4, 9, (sequences, width)).astype(np.int32), acceptance_DP)


def sequences_of(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(SLOTS)[: int(rng.integers(0, SLOTS + 1))]


def parts(history: History) -> list[np.ndarray]:
    memory = history.memory
    return [*memory.logs, *memory.offer, memory.learned.tests, memory.learned.fail]


@settings(max_examples=200)
@given(SEEDS)
def test_what_is_committed_is_taken_in_and_followed_as_by_the_history_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fast, columns = history_of(rng), columns_of(rng)
    slow = copy.deepcopy(fast)
    for _ in range(4):
        slots = sequences_of(rng)
        lives, token, emit = rng.random(len(slots)) < 0.8, rng.integers(4, 7, (len(slots), 4)), None
        emit = rng.integers(0, 5, len(slots))
        found = Found(np.empty((len(slots), DRAFTS), np.int32), np.empty((len(slots), DRAFTS), np.float32))
        while True:
            grows, asked = follow(fast.memory, columns, slots, lives, token, emit, found)
            if grows < 0:
                break
            fast.grow(int(slots[grows]), int(emit[grows]))
        there = slots < SLOTS - 1
        slow.append(slots[there], token[there], emit[there])
        budget = np.where(lives, np.minimum(2 * columns.widest, columns.limit - columns.generated)[slots], 0)
        expected = slow.propose(slots[there], budget[there])
        cut_at_stops(expected.token_SD, expected.acceptance_SD, expected.count_S, columns.stop_ids[slots[there]])
        assert asked == (there & lives).sum()
        np.testing.assert_array_equal(found.acceptance[there], expected.acceptance_SD)
        assert not found.acceptance[~there].any()
        known = expected.acceptance_SD > 0
        np.testing.assert_array_equal(found.token[there][known], expected.token_SD[known])
        for one, other in zip(parts(fast), parts(slow), strict=True):
            np.testing.assert_array_equal(one, other)


@settings(max_examples=400)
@given(SEEDS)
def test_drafts_are_bought_and_placed_as_by_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history, columns, prices, slots = history_of(rng), columns_of(rng), prices_of(rng), sequences_of(rng)
    running, spare, least = np.arange(SLOTS), int(rng.integers(0, 40)), float(rng.choice([0.05, 0.3]))
    forward = Committed(
        slots, rng.random(len(slots)) < 0.8, *rng.integers(0, PLACES, (2, len(slots))), rng.random(len(slots)) < 0.5
    )
    most = np.minimum(2 * columns.widest, columns.limit - columns.generated)
    length = np.minimum(rng.integers(0, PLACES + 1, SLOTS), most)
    windows = Windows(
        slots, rng.integers(4, 9, (SLOTS, PLACES)), np.zeros((SLOTS, PLACES), np.bool_), rng.integers(0, length + 1),
        length,
    )  # fmt: skip
    for window, lead in zip(windows.token, windows.lead, strict=True):
        window[lead:] = MASK
    if rng.random() < 0.3:  # on their way from a device: in places of their own
        windows = Windows(np.arange(len(slots)), *(part[slots].copy() for part in windows[1:]))
    found = found_of(rng, len(slots), int(rng.choice([0, DRAFTS, DRAFTS, DRAFTS])))
    by_masks = rng.random((2, SLOTS, WIDTH)).cumprod(axis=-1)
    other = copy.deepcopy(history)

    def propose(slots_N: np.ndarray, most_N: np.ndarray, given_NL: np.ndarray, ahead_N: np.ndarray) -> Found:
        more = other.propose(slots_N, most_N, given_NL, ahead_N)
        cut_at_stops(more.token_SD, more.acceptance_SD, more.count_S, columns.stop_ids[slots_N])
        return Found(more.token_SD, more.acceptance_SD)

    untouched: Any = copy.deepcopy((columns, windows))
    expected = oracle.placed(forward, found, propose, columns, windows, by_masks, prices, least, running, spare, MASK)
    got = place(forward, found, history.memory, columns, windows, by_masks, prices, least, running, spare, MASK)
    own = np.isin(slots, expected.slots_G)
    at_G = windows.place[own]
    for name, line in (("token", expected.token_GL), ("lead", expected.lead_G), ("length", expected.length_G)):
        np.testing.assert_array_equal(getattr(windows, name)[at_G], line, err_msg=name)
    np.testing.assert_array_equal(columns.source[expected.slots_G], expected.source_GL)
    np.testing.assert_allclose(got.saved_seconds, expected.saved_seconds, atol=1e-9)
    assert got.placed == (expected.source_GL == DraftSource.HISTORY).any()
    changed = [g for g, at in enumerate(at_G) if (windows.token[at] != untouched[1].token[at]).any()]
    for g in changed:
        assert columns.rows[expected.slots_G[g]] == 1 + expected.length_G[g]
        np.testing.assert_array_equal(windows.filled[at_G[g]], np.arange(PLACES) < expected.lead_G[g])
    others = np.setdiff1d(np.arange(SLOTS), expected.slots_G)
    for now, before in ((columns.source, untouched[0].source), (columns.rows, untouched[0].rows)):
        np.testing.assert_array_equal(now[others], before[others])
    rest = np.setdiff1d(np.arange(len(windows.lead)), at_G)
    for now, before in zip(windows[1:], untouched[1][1:], strict=True):
        np.testing.assert_array_equal(now[rest], before[rest])


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_bought_as_a_search_over_all_numbers_buys_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices, acceptance = prices_of(rng), rng.random((4, DRAFTS)).cumprod(axis=1)
    commits, rows, spare = float(rng.uniform(1, 8)), float(rng.integers(1, 12)), int(rng.integers(0, 30))
    found = buy_rows(prices, acceptance, commits, rows, spare)
    np.testing.assert_allclose(found, oracle.bought(prices, acceptance, commits, rows, spare), rtol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_the_least_price_of_a_row_is_that_of_a_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices, rows, most = prices_of(rng), float(rng.integers(1, 12)), int(rng.integers(1, 40))
    found = least_row_price(prices, rows, most)
    np.testing.assert_allclose(found, oracle.least_row_price(prices, rows, most), rtol=1e-9)


def test_drafts_are_bought_where_the_next_row_is_dear_and_many_are_not() -> None:
    """Two knots near each other, of which one is off: the row behind them is priced at more than any draft brings."""
    prices = Prices(
        knots=np.array([4.0, 5.0, 64.0]), seconds=np.array([1.0, 1.3, 8.0]), quantum=1.0, fixed=0.0, per_row=0.0,
        spared_alone=0.0, sequences=4.0, most_rows=99.0, near_optimal=0.999, seconds_per_commit=0.25,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    history, columns = history_of(rng), columns_of(rng)
    slots = np.arange(4)
    for column, value in ((columns.constrained, False), (columns.rows, 1), (columns.masks, 0), (columns.widest, WIDTH)):
        column[:] = value
    columns.limit[:], columns.stop_ids[:] = columns.generated + 99, -1
    windows = Windows(
        slots, np.full((4, PLACES), MASK), np.zeros((4, PLACES), np.bool_), *np.zeros((2, 4), dtype=np.int64)
    )
    forward = Committed(slots, np.ones(4, np.bool_), np.ones(4, np.int64), np.zeros(4, np.int64), np.ones(4, np.bool_))
    found = Found(np.full((4, DRAFTS), 5, np.int32), np.full((4, DRAFTS), 0.9, np.float32))
    assert (1.3 - 1.0) / prices.seconds_per_commit > 1.0, "of the next row"
    by_masks = np.zeros((2, SLOTS, WIDTH))
    place(forward, found, history.memory, columns, windows, by_masks, prices, 0.05, slots, 99, MASK)
    assert (windows.lead == DRAFTS).all()
    dear = prices._replace(seconds=np.array([1.0, 1.3, 18.0]))
    windows.lead[:] = windows.length[:] = 0
    place(forward, found, history.memory, columns, windows, by_masks, dear, 0.05, slots, 99, MASK)
    assert not windows.lead.any(), "no number of rows pays"
