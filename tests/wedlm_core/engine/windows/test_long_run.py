"""Beginnings and ends of outputs in the long run; a walk through outputs, forward by forward, is the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine import planning_oracle
from wedlm_core.engine.windows.long_run import LongRun, long_run
from wedlm_core.engine.windows.output_lengths import OutputLengths

WIDE = 32


def steady(hazard: float) -> LongRun:
    """One sequence whose drafts are each right with this probability, given that those before them are."""
    acceptance = np.cumprod(np.full((1, WIDE), hazard), axis=1)
    return long_run(acceptance, acceptance * 0.5, np.full((2, 1), hazard), 0.0)


def walk(length: int, masks: int) -> tuple[int, int]:
    """Forwards and rows of an output whose drafts are all right: a head, drafts up to the end, masks if none is it."""
    forwards, rows, left, drafts = 0, 0, length, 0
    while left > 0:
        drafts = min(drafts, left)
        forwards, rows = forwards + 1, rows + 1 + drafts + (masks if drafts < left else 0)
        left, drafts = left - drafts - 1, masks - 1  # the verifier decides what the first mask proposes for
    return forwards, rows


@given(st.integers(2, 120), st.integers(1, WIDE))
def test_outputs_of_one_length_whose_drafts_are_right_take_the_forwards_and_rows_of_a_walk(
    length: int, masks: int
) -> None:
    forwards, rows = walk(length, masks)
    ending = steady(1.0).with_outputs(OutputLengths(tokens=float(length), spread=0.0))
    assert ending.commits_SW[0, masks] == pytest.approx(length / forwards)
    assert ending.rows_SW[0, masks] == pytest.approx(rows / forwards)


@given(st.integers(1, 5), st.integers(1, WIDE))
def test_outputs_of_many_lengths_end_anywhere_in_a_window(windows: int, masks: int) -> None:
    lengths = [1 + (windows - 1) * masks + rest for rest in range(1, masks + 1)]
    forwards, rows = np.array([walk(length, masks) for length in lengths]).mean(axis=0)
    tokens = float(np.mean(lengths))
    ending = steady(1.0).with_outputs(OutputLengths(tokens=tokens))
    assert ending.commits_SW[0, masks] == pytest.approx(tokens / forwards)
    # A window that is wider than most outputs has room for drafts that none of them has.
    assert ending.rows_SW[0, masks] == pytest.approx(rows / forwards, rel=1e-9 if windows > 1 else 0.1)


@given(st.floats(0.3, 0.99), st.integers(2, 40), st.integers(1, WIDE))
def test_where_drafts_may_be_wrong_an_output_takes_no_fewer_forwards_than_if_all_were_right(
    hazard: float, length: int, masks: int
) -> None:
    ending = steady(hazard).with_outputs(OutputLengths(tokens=float(length), spread=0.0))
    assert length / ending.commits_SW[0, masks] >= walk(length, masks)[0] - 1e-9


@given(st.integers(0, 3), st.floats(0.3, 1.0), st.sampled_from([0.0, 10.0, math.inf]))
def test_an_end_costs_commits_and_long_outputs_are_as_if_they_had_none(
    forced: int, hazard: float, spread: float
) -> None:
    plain, more = steady(hazard), np.array([float(forced)])
    run = planning_oracle.with_forced(plain, more)
    for tokens in (1.0, 2.0, 7.5, 60.0):
        ending = plain.with_outputs(OutputLengths(tokens=tokens, spread=spread), forced_S=more)
        assert (ending.commits_SW <= np.minimum(run.commits_SW, tokens) + 1e-9).all()
        assert ending.rows_SW.min() > 0
    ending = plain.with_outputs(OutputLengths(tokens=1e12, spread=spread), forced_S=more)
    np.testing.assert_allclose(ending.rows_SW, run.rows_SW, rtol=1e-6)
    np.testing.assert_allclose(ending.commits_SW, run.commits_SW, rtol=1e-6)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Acceptance of valid and of stale drafts, and how often the next ones are valid after these."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    count, width = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    valid_SW, stale_SW = (rng.random((2, count, width)) ** draw(st.sampled_from([0.1, 1.0]))).cumprod(axis=2)
    return valid_SW, stale_SW, rng.random((2, count))


@settings(deadline=None)  # the first example compiles
@given(
    sequences(), st.floats(0.0, 0.5), st.floats(1.0, 100.0), st.sampled_from([0.0, 5.0, math.inf]), st.floats(0.0, 4.0),
    st.sampled_from([1.0, 0.4]),
)  # fmt: skip
def test_runs_and_ends_are_those_of_arrays(
    case: tuple[np.ndarray, np.ndarray, np.ndarray], price: float, tokens: float, spread: float, more: float,
    row: float,
) -> None:  # fmt: skip
    outputs = OutputLengths(tokens=tokens, spread=spread)
    found, wanted = long_run(*case, price), planning_oracle.long_run(*case, price)
    forced_S = np.full(len(case[0]), more)
    ended = planning_oracle.with_ends(planning_oracle.with_forced(wanted, forced_S, row), outputs)
    pairs = ((found, wanted), (found.with_outputs(outputs, forced_S=forced_S, forced_row=row), ended))
    for own, other in pairs:
        np.testing.assert_array_equal(own.kept_SW, other.kept_SW)
        for name in ("commits_SW", "rows_SW", "sure_SW"):
            np.testing.assert_allclose(getattr(own, name), getattr(other, name), rtol=1e-12)
