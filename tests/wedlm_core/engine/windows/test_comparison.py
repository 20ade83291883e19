"""Forwards of two kinds are compared by the seconds of their tokens, prompts apart, with an error that is right."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from wedlm_core.engine.windows.comparison import Arms, Belief, Forwards, octave


def test_what_is_compared_is_seconds_per_token_once_there_are_forwards_enough() -> None:
    rng, arms = np.random.default_rng(1), Arms()
    for _ in range(30):
        arms.arm(True).add(2e-3 * float(rng.uniform(0.9, 1.1)), 16.0, 0.0)
        assert arms.compare() is None
    for _ in range(30):
        arms.arm(False).add(1e-3 * float(rng.uniform(0.9, 1.1)), 4.0, 0.0)
    found = arms.compare(20)
    assert found is not None
    assert found.ratio == pytest.approx(math.log(0.5), abs=4 * found.error)
    assert arms.compare(40) is None
    arms.forget(False)
    assert arms.compare() is None


@pytest.mark.parametrize("stood_still", [(True,), (False,), (True, False)])
def test_a_clock_that_stood_still_compares_nothing(stood_still: tuple[bool, ...]) -> None:
    arms = Arms()
    for kind in (True, False):
        for _ in range(20):
            arms.arm(kind).add(0.0 if kind in stood_still else 1e-3, 8.0, 0.0)
    assert arms.compare() is None


def test_a_clock_that_stood_still_for_a_forward_is_trusted_again() -> None:
    arm = Forwards()
    for seconds in (0.0, 1e-3, 1e-3, 1e-3):
        arm.add(seconds, 8.0, 0.0)
    assert arm.seconds == pytest.approx(3e-3, rel=0.03)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_clock_that_broke_compares_nothing(seconds: float) -> None:
    arms = Arms()
    for kind in (True, False):
        for number in range(20):
            arms.arm(kind).add(seconds if kind and not number else 1e-3, 8.0, 0.0)
    assert arms.compare() is None


def test_prompts_that_never_vary_have_no_price() -> None:
    """What is left of their squares is rounding, of either sign: a quotient of that made any price."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        arms = Arms()
        for kind in (True, False):
            tokens, prompts = float(rng.integers(1, 64)), float(rng.integers(1, 600))
            for _ in range(50):
                arms.arm(kind).add(1e-4 * tokens * float(rng.uniform(0.9, 1.1)), tokens, prompts)
        found = arms.compare()
        assert found is not None
        assert found.ratio == pytest.approx(0.0, abs=0.1)


def test_about_as_many_sequences_are_alike_and_one_more_or_less_changes_nothing() -> None:
    assert [octave(2**n, 0) for n in range(7)] == list(range(7))
    assert octave(0, 5) == 0
    for count in range(5, 300):
        own = octave(count, 0)
        assert octave(count - 1, own) == octave(count + 1, own) == octave(count, own) == own
        for last in range(10):
            assert abs(octave(count, last) - math.log2(count)) < 0.75


def test_forwards_are_compared_as_if_each_token_came_with_as_many_rows_of_prompts() -> None:
    rng, arms = np.random.default_rng(0), (Forwards(), Forwards())
    for number, arm in enumerate(arms):
        for _ in range(400):
            tokens, prompts = float(rng.integers(4, 12)), float(80 * rng.poisson(0.1 + 0.4 * number))
            arm.add(1e-4 * tokens * float(rng.uniform(0.95, 1.05)) + 2e-5 * prompts, tokens, prompts)
    products, squares = (sum(both) for both in zip(*(arm.beside_prefill() for arm in arms), strict=True))
    row = products / squares
    assert row == pytest.approx(2e-5, rel=0.02)
    found = [arm.seconds_per_token(row, 2.0) for arm in arms]
    assert [each for each, _ in found] == pytest.approx([1.4e-4] * 2, rel=0.01)
    assert all(0.001 < error < 0.01 for _, error in found)
    crude = [arm.seconds / arm.tokens for arm in arms]
    assert crude[1] > 1.3 * crude[0]


def test_the_error_is_that_of_means_of_as_many_forwards() -> None:
    """In 100 runs the means lie about as far apart as one run says."""
    rng, found = np.random.default_rng(0), []
    for _ in range(100):
        arm = Forwards()
        for _ in range(60):
            arm.add(float(rng.normal(1e-3, 3e-4)), 8.0, 0.0)
        found.append(arm.seconds_per_token(0.0, 0.0))
    spread = float(np.std([each for each, _ in found])) / 1.25e-4
    said = float(np.mean([error for _, error in found]))
    assert 0.8 * spread < said < 1.6 * spread


def test_comparisons_narrow_what_is_believed_and_time_widens_it() -> None:
    belief, errors = Belief.unknown(0.3, remembered=1000), [0.3]
    for _ in range(5):
        belief.learn(0.2, 0.1)
        errors.append(belief.error)
    assert all(later < before for before, later in itertools.pairwise(errors))
    assert belief.value == pytest.approx(0.2, abs=0.02)
    before = belief.value
    belief.fade(1000)
    assert belief.value == pytest.approx(before / math.e)
    belief.fade(100_000)
    assert (belief.value, belief.variance) == (pytest.approx(0.0), pytest.approx(0.09))


def test_a_comparison_that_is_unlikely_is_clipped_and_one_without_error_is_believed() -> None:
    belief = Belief.unknown(0.1, remembered=1000)
    assert belief.after(5.0, 0.1).value < 0.2
    assert belief.after(0.1, 0.0).value == pytest.approx(0.1)
    assert belief.value == 0.0, "what would be is not what is"
