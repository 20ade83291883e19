"""The long run of windows equals its readable form; the allocation is the best of all allocations."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine import planning_oracle
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.masks import LongRun, allocate, long_run
from wedlm_core.engine.drafting.step_time import Load


@st.composite
def sequences(draw: st.DrawFn, most: int = 4, widest: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Acceptance of valid and of stale drafts, and how often the next ones are valid after these."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    count, width = draw(st.integers(1, most)), draw(st.integers(1, widest))
    valid_SW, stale_SW = (rng.random((2, count, width)) ** draw(st.sampled_from([0.1, 1.0]))).cumprod(axis=2)
    return valid_SW, stale_SW, rng.random((2, count))


@settings(deadline=None)  # the first example compiles
@given(sequences())
def test_the_long_run_is_that_of_arrays(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    found, wanted = long_run(*case), planning_oracle.long_run(*case)
    np.testing.assert_array_equal(found.kept_SW, wanted.kept_SW)
    for name in ("commits_SW", "rows_SW"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12)


def test_the_rows_of_windows_that_are_bounds_are_a_head_drafts_and_masks() -> None:
    half = np.full((1, 3), 0.5).cumprod(axis=1)
    assert long_run(half, half, np.ones((2, 1)), bounds=True).rows_SW.tolist() == [[1, 3, 5, 7]]


def rates_of(run: LongRun, masks_NS: np.ndarray, load: Load) -> tuple[np.ndarray, np.ndarray]:
    """Commits per second of N allocations, with prefill and without."""
    count = masks_NS.shape[1]
    rows_N, commits_N = (found[np.arange(count), masks_NS].sum(axis=1) for found in (run.rows_SW, run.commits_SW))
    rows_N += load.other_rows
    seconds_N = load.seconds(rows_N, count)
    return commits_N / (seconds_N + load.prefill_seconds(rows_N, commits_N, count)), commits_N / seconds_N


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Forwards in which each row costs the same: then the chain of hulls has the best windows in it."""
    share = st.floats(0, 1)
    return Load(
        cost=StepCost.linear(fixed=1.0, per_row=draw(st.floats(0.01, 0.2))), host_seconds=draw(share),
        other_rows=5 * draw(share), prefill_rows=2 * draw(share), burst_rows=8.0,
    )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(sequences(most=3, widest=4), loads())
def test_the_allocation_has_the_best_rate_of_all(case: tuple[np.ndarray, np.ndarray, np.ndarray], load: Load) -> None:
    run, (count, width) = long_run(*case), case[0].shape
    none, masked = allocate(run, np.full(count, width), load)
    masked = masked or none  # no mask gains anything
    assert masked.rows == pytest.approx(load.other_rows + run.rows_SW[np.arange(count), masked.masks_S].sum())
    chosen_NS = np.stack([none.masks_S, masked.masks_S])
    rates_N, without_prefill_N = rates_of(run, chosen_NS, load)
    assert not none.masks_S.any()
    np.testing.assert_allclose((none.commits_per_second, masked.commits_per_second), without_prefill_N)
    every_NS = np.array(list(itertools.product(range(width + 1), repeat=count)))
    assert rates_N.max() >= CONSTANTS.near_best * rates_of(run, every_NS, load)[0].max()


def test_windows_are_narrower_where_prompts_need_the_rows_that_cost_nothing() -> None:
    valid_SW = np.full((2, 8), 0.9).cumprod(axis=1)
    run = long_run(valid_SW, valid_SW, np.full((2, 2), 0.9))
    alone = Load(cost=StepCost.linear(fixed=1.0, per_row=0.2, floor_rows=24))
    prompts = replace(alone, prefill_rows=2.0, burst_rows=24.0)
    (_, wide), (_, narrow) = (allocate(run, np.full(2, 8), load) for load in (alone, prompts))
    assert wide is not None
    assert narrow is not None
    assert narrow.masks_S.sum() < wide.masks_S.sum()
    slow, fast = rates_of(run, np.stack([wide.masks_S, narrow.masks_S]), prompts)[0]
    assert fast > slow


def test_rows_that_gain_next_to_nothing_are_not_taken_although_they_are_free() -> None:
    valid_SW = np.array([[0.9, *np.geomspace(1e-5, 1e-9, 11)]])
    run = long_run(valid_SW, valid_SW, np.full((2, 1), 0.9))
    _, masked = allocate(run, np.array([12]), Load(cost=StepCost.linear(fixed=1.0, per_row=0.0)))
    assert masked is not None
    assert masked.masks_S.tolist() == [2]


def test_no_window_is_wider_than_allowed_nor_beyond_the_row_budget() -> None:
    valid_SW = np.full((4, 8), 1.0)
    run = long_run(valid_SW, valid_SW, np.ones((2, 4)))
    free = StepCost.linear(fixed=1.0, per_row=1e-6)
    _, masked = allocate(run, np.array([0, 2, 5, 8]), Load(cost=free))
    assert masked is not None
    assert masked.masks_S.tolist() == [0, 2, 5, 8]
    _, tight = allocate(run, np.full(4, 8), Load(cost=free, most_rows=20))
    assert tight is not None
    assert 4 < tight.rows <= 20
    _, tighter = allocate(run, np.full(4, 8), Load(cost=free, most_rows=20, prefill_rows=0.5))
    assert tighter is not None
    assert 4 < tighter.rows + 0.5 * run.commits_SW[np.arange(4), tighter.masks_S].sum() <= 20


def test_without_room_for_masks_there_is_no_allocation_with_masks() -> None:
    run = long_run(np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 2)))
    _, masked = allocate(run, np.zeros(2, dtype=np.int64), Load(cost=StepCost.linear(fixed=1.0, per_row=0.1)))
    assert masked is None
