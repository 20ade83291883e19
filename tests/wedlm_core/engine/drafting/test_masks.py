"""The long run of windows equals its readable form; the allocation is as good as the best of all allocations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine import planning_oracle
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.masks import LongRun, allocate, long_run
from wedlm_core.engine.drafting.step_time import Load


@st.composite
def sequences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Acceptance of valid and of stale drafts, and how often the next ones are valid after these."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    count, width = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    valid_SW, stale_SW = (rng.random((2, count, width)) ** draw(st.sampled_from([0.1, 1.0]))).cumprod(axis=2)
    return valid_SW, stale_SW, rng.random((2, count))


@settings(deadline=None)  # the first example compiles
@given(sequences())
def test_the_long_run_is_that_of_arrays(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    found, wanted = long_run(*case), planning_oracle.long_run(*case)
    np.testing.assert_array_equal(found.kept_SW, wanted.kept_SW)
    for name in ("commits_SW", "rows_SW"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12)


def rate_of(run: LongRun, masks: tuple[int, ...], load: Load) -> float:
    every = np.arange(len(masks))
    rows, commits = run.rows_SW[every, masks].sum(), run.commits_SW[every, masks].sum()
    return float(commits / load.seconds(np.array([rows]), len(masks))[0])


@pytest.mark.parametrize("seed", range(12))
def test_the_allocation_has_nearly_the_best_rate_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    valid_SW = np.cumprod(np.repeat(rng.uniform(0.3, 0.98, (3, 1)), 4, axis=1), axis=1)
    run = long_run(valid_SW, 0.8 * valid_SW, np.full((2, 3), 0.7))
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=float(rng.uniform(0.01, 0.2))))
    none, masked = allocate(run, np.full(3, 4), load)
    assert masked is not None
    assert none.commits_per_second == pytest.approx(rate_of(run, (0, 0, 0), load))
    found = max(none.commits_per_second, masked.commits_per_second)
    best = max(rate_of(run, masks, load) for masks in itertools.product(range(5), repeat=3))
    assert found >= 0.97 * best
    assert masked.commits_per_second == pytest.approx(rate_of(run, tuple(masked.masks_S.tolist()), load))


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


def test_without_room_for_masks_there_is_no_allocation_with_masks() -> None:
    run = long_run(np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 2)))
    _, masked = allocate(run, np.zeros(2, dtype=np.int64), Load(cost=StepCost.linear(fixed=1.0, per_row=0.1)))
    assert masked is None
