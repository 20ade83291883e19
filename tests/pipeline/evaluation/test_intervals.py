"""Intervals: known values, coverage by simulation, and what pairs add."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.evaluation.intervals import mean_of_shares, paired_difference, wilson


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    # By the formula of the score interval, as printed for these counts by R's prop.test(correct=FALSE).
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval_has_the_known_values(correct: int, count: int, low: float, high: float) -> None:
    found = wilson(correct, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert found.value == correct / count


def test_nothing_is_known_of_no_trials_and_nonsense_is_refused() -> None:
    assert math.isnan(wilson(0, 0).value)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    for arguments in ((3, 2), (-1, 2), (1, 2, 1.0), (1, 2, 0.0)):
        with pytest.raises(ValueError, match="no share"):
            wilson(*arguments)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_wilsons_interval_covers_the_truth_as_often_as_it_says(share: float) -> None:
    random = np.random.default_rng(3)
    hits = [wilson(int(k), 60).low <= share <= wilson(int(k), 60).high for k in random.binomial(60, share, size=2000)]
    assert 0.92 <= np.mean(hits) <= 0.985


def test_the_bootstrap_of_pairs_covers_the_truth_and_is_what_drawing_questions_gives() -> None:
    random = np.random.default_rng(5)
    cells = np.array([0.5, 0.1, 0.2, 0.2])  # both, first only, second only, neither: a difference of 0.1
    hits = []
    for _ in range(300):
        counts = random.multinomial(200, cells)
        interval = paired_difference(*map(int, counts)).interval
        hits.append(interval.low <= 0.1 <= interval.high)
    assert 0.90 <= np.mean(hits) <= 0.985

    second, first = np.r_[np.ones(30), np.zeros(20), np.ones(50)], np.r_[np.zeros(30), np.ones(20), np.ones(50)]
    drawn = [np.mean((second - first)[random.integers(0, 100, 100)]) for _ in range(4000)]
    plain = np.quantile(drawn, [0.025, 0.975])
    ours = paired_difference(50, 20, 30, 0).interval
    assert (ours.low, ours.high) == pytest.approx(tuple(plain), abs=0.03)
    assert ours.value == pytest.approx(0.1)


def test_equal_answers_differ_by_nothing_and_intervals_repeat() -> None:
    same = paired_difference(40, 0, 0, 60).interval
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert paired_difference(40, 3, 5, 60) == paired_difference(40, 3, 5, 60)
    assert math.isnan(paired_difference(0, 0, 0, 0).interval.value)


def test_the_mean_of_tasks_weighs_them_alike_and_is_never_certain() -> None:
    found = mean_of_shares([(90, 100), (1, 10)])
    assert found.value == pytest.approx(0.5)
    assert found.low < 0.5 < found.high
    alone = mean_of_shares([(81, 263)])
    assert (alone.low, alone.high) == pytest.approx((wilson(81, 263).low, wilson(81, 263).high), abs=0.01)
    none = mean_of_shares([(0, 5), (0, 5)])
    assert none.low < 0.02
    assert 0.05 < none.high < 0.5
    assert math.isnan(mean_of_shares([(0, 0)]).value)
