"""Windows with drafts from history, pass by pass: as the readable form in arrays has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.engine import recall_oracle as oracle
from wedlm_core.kernels.cpu.recall import (
    Worth,
    best_prefixes,
    cut_at_stops,
    fill_windows,
    find_broken,
    open_windows,
    weigh_sources,
)

SLOTS, WIDTH, DRAFTS, PLACES, MASK = 7, 5, 6, 10, 3
SEEDS = st.integers(0, 2**32 - 1)


def falling(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Probabilities that fall along the last axis."""
    return rng.random(shape).cumprod(axis=-1)


def offers(rng: np.random.Generator, windows: int) -> np.ndarray:
    """Acceptance of history's drafts: some sequences have fewer, or none."""
    known_GD = np.arange(DRAFTS) < rng.integers(0, DRAFTS + 1, windows)[:, None]
    return np.where(known_GD, falling(rng, windows, DRAFTS), 0).astype(np.float32)


def empty(windows: int) -> Worth:
    return Worth(np.empty((windows, DRAFTS)), *np.empty((3, windows)), np.empty(windows, dtype=np.bool_))


def assert_worth(found: Worth, expected: Worth) -> None:
    for name in ("value", "reached", "later", "acceptance"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(found.replaces, expected.replaces)


@given(SEEDS)
def test_acceptance_is_nothing_behind_a_stop_token_and_behind_the_last_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    token_GD, stop_GK = rng.integers(0, 5, (SLOTS, DRAFTS)).astype(np.int32), rng.integers(-1, 5, (SLOTS, 2))
    count_G, found_GD = rng.integers(0, DRAFTS + 1, SLOTS), falling(rng, SLOTS, DRAFTS).astype(np.float32)
    expected_GD = oracle.within(token_GD, found_GD, count_G, stop_GK)
    cut_at_stops(token_GD, found_GD, count_G, stop_GK)
    np.testing.assert_array_equal(found_GD, expected_GD)


@given(SEEDS)
def test_broken_windows_are_found_and_sources_cleared(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots_G = rng.permutation(SLOTS)[:4]
    source_SL = rng.integers(0, 3, (SLOTS, PLACES)).astype(np.int8)
    count_G, offered_G = rng.integers(0, PLACES, (2, 4))
    expected_G, before_SL = oracle.broken(source_SL[slots_G], count_G, offered_G), source_SL.copy()
    broken_G = np.empty(4, dtype=np.bool_)
    assert find_broken(slots_G, count_G, offered_G, source_SL, broken_G) == expected_G.any()
    np.testing.assert_array_equal(broken_G, expected_G)
    assert not source_SL[slots_G].any()
    others = np.setdiff1d(np.arange(SLOTS), slots_G)
    np.testing.assert_array_equal(source_SL[others], before_SL[others])


@given(SEEDS)
def test_windows_with_history_are_those_of_arrays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = int(rng.integers(1, SLOTS + 1))
    slots_G = rng.permutation(SLOTS)[:windows]
    most_G = rng.integers(0, PLACES + 1, windows)
    lead_G = np.minimum(rng.integers(0, WIDTH + 1, windows), most_G)
    length_G = np.minimum(lead_G + rng.integers(0, WIDTH + 1, windows), PLACES)
    token_GL, stop_GK = rng.integers(4, 9, (windows, PLACES)), rng.integers(3, 12, (windows, 2))
    broken_G, planned_G = rng.random(windows) < 0.2, rng.integers(-1, WIDTH + 1, windows)
    expected = oracle.opened(token_GL, lead_G, length_G, broken_G, planned_G, most_G, stop_GK)
    drafts_G, masks_G = np.empty((2, windows), dtype=np.int64)
    ends_G = np.empty(windows, dtype=np.bool_)
    open_windows(token_GL, lead_G, length_G, broken_G, planned_G, most_G, stop_GK, drafts_G, masks_G, ends_G)
    np.testing.assert_array_equal(drafts_G, expected.drafts_G)
    np.testing.assert_array_equal(masks_G, expected.masks_G)
    np.testing.assert_array_equal(ends_G, expected.ends_G)

    by_masks_2SW, offer_GD, price = falling(rng, 2, SLOTS, WIDTH), offers(rng, windows), float(rng.random() / 2)
    valid_G, worth = rng.random(windows) < 0.5, empty(windows)
    weigh_sources(slots_G, valid_G, drafts_G, masks_G, by_masks_2SW, offer_GD, price, worth)
    assert_worth(worth, oracle.worth_of(slots_G, valid_G, drafts_G, masks_G, by_masks_2SW, offer_GD, price))
    behind = np.flatnonzero(~worth.replaces)
    follow_ND = offers(rng, len(behind))
    expected_ND, _ = oracle.best_prefix(
        follow_ND * worth.reached[behind, None], worth.reached[behind], worth.later[behind], price
    )
    best_prefixes(behind, follow_ND, price, worth)
    np.testing.assert_allclose(worth.acceptance[behind], expected_ND, rtol=1e-6)

    token_GD = rng.integers(4, 9, (windows, DRAFTS)).astype(np.int32)
    threshold = float(rng.choice([0.05, 0.3, 0.7, np.inf]))
    wanted = oracle.filled(
        slots_G, worth, threshold, price, token_GD, by_masks_2SW, most_G, stop_GK, MASK, token_GL, drafts_G, masks_G
    )
    source_GL, lead_G, length_G = np.empty((windows, PLACES), dtype=np.int8), lead_G.copy(), length_G.copy()
    fill_windows(
        slots_G, worth, threshold, price, token_GD, by_masks_2SW, most_G, stop_GK, MASK, token_GL, drafts_G, masks_G,
        lead_G, length_G, source_GL,
    )  # fmt: skip
    for found, expected_G in zip((token_GL, lead_G, length_G, source_GL), wanted, strict=True):
        np.testing.assert_array_equal(found, expected_G)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_prefix_is_that_of_all_prefixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reached_G, later_G, price = rng.random(5), rng.random(5) * 4, float(rng.random())
    acceptance_GD = reached_G[:, None] * falling(rng, 5, 7)
    acceptance_GD[np.arange(7) >= rng.integers(0, 8, 5)[:, None]] = 0
    found_GD, value_G = oracle.best_prefix(acceptance_GD, reached_G, later_G, price)
    for row in range(5):
        known = int((acceptance_GD[row] > 0).sum())
        values = [
            acceptance_GD[row, :count].sum()
            - price * count
            + later_G[row] * (acceptance_GD[row, count - 1] if count else reached_G[row])
            for count in range(known + 1)
        ]
        assert np.isclose(value_G[row], max(values))
        assert int((found_GD[row] > 0).sum()) == int(np.argmax(values))
