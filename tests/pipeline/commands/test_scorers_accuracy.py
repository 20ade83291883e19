"""Accuracies and differences: known values, and intervals that cover the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.commands.scorers import OUTCOMES, Counts, Difference


def counts(correct: int, wrong: int, **others: int) -> Counts:
    return Counts(outcomes={**dict.fromkeys(OUTCOMES, 0), "correct": correct, "wrong": wrong, **others})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    # As printed for these counts by R's prop.test(correct=FALSE).
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_accuracy_has_wilsons_interval(correct: int, count: int, low: float, high: float) -> None:
    found = counts(correct, count - correct).accuracy()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert found.value == correct / count


def test_failed_questions_count_and_unjudged_ones_do_not() -> None:
    found = counts(2, 1, failed=1, unjudged=7)
    accuracy = found.accuracy()
    assert accuracy is not None
    assert (found.questions, found.judged, accuracy.value) == (11, 4, 0.5)
    assert counts(0, 0, unjudged=3).accuracy() is None


def test_the_interval_of_a_difference_covers_the_truth() -> None:
    random = np.random.default_rng(5)
    shares = np.array([0.5, 0.1, 0.2, 0.2])
    drawn = [
        Difference(both=a, only_baseline=b, only_this=c, neither=d).interval()
        for a, b, c, d in random.multinomial(200, shares, size=1000).tolist()
    ]
    hits = [one is not None and one.low <= 0.1 <= one.high for one in drawn]
    assert 0.93 <= np.mean(hits) <= 0.97


def test_equal_runs_differ_by_nothing_and_one_question_says_nothing() -> None:
    equal = Difference(both=3, only_baseline=0, only_this=0, neither=2).interval()
    assert equal is not None
    assert (equal.value, equal.low, equal.high) == (0, 0, 0)
    assert Difference(both=1, only_baseline=0, only_this=0, neither=0).interval() is None
