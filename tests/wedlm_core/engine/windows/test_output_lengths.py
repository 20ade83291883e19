"""Lengths of outputs: the last ones count, once enough have ended."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wedlm_core.engine.windows.output_lengths import EndedOutputs
from wedlm_core.engine.windows.tuning import PlannerTuning

TUNING = PlannerTuning(lengths_kept=16, lengths_trusted=4)


def test_few_ended_outputs_tell_nothing() -> None:
    ended = EndedOutputs(TUNING)
    ended.record(np.array([3, 3, 3]))
    found = ended.lengths(70.0)
    assert (found.tokens, found.spread) == (70.0, math.inf)


def test_equal_lengths_have_no_spread_and_a_range_of_them_its_width() -> None:
    alike, ranging = EndedOutputs(TUNING), EndedOutputs(PlannerTuning(lengths_kept=1000))
    alike.record(np.full(5, 25))
    ranging.record(np.arange(100, 201))
    assert (alike.lengths(0.0).tokens, alike.lengths(0.0).spread) == (25.0, 0.0)
    assert ranging.lengths(0.0).tokens == pytest.approx(150.0)
    assert ranging.lengths(0.0).spread == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize(
    ("running", "forgotten"), [((201, 500, 7), True), ((201, 200, 7), False), ((900,), True), ((150, 150), False)]
)
def test_ended_outputs_are_forgotten_once_most_that_run_are_twice_as_long_as_any_of_them(
    running: tuple[int, ...], forgotten: bool
) -> None:
    """Those were another job's: its rows of one token kept all windows of the next job closed."""
    ended = EndedOutputs(TUNING)
    assert not ended.outgrown(np.array(running)), "nothing is known yet"
    ended.record(np.array([1, 100, 1, 1, 1]))
    assert ended.outgrown(np.array(running)) == forgotten
    assert (ended.lengths(4000.0).tokens == 4000.0) == forgotten
    ended.record(np.full(4, 9))
    assert ended.lengths(4000.0).tokens == pytest.approx(9.0 if forgotten else (104 + 36) / 9)


def test_only_the_last_outputs_count_however_many_end_at_once() -> None:
    ended = EndedOutputs(TUNING)
    ended.record(np.full(40, 7))
    ended.record(np.full(10, 90))
    ended.record(np.full(6, 80))
    assert ended.lengths(0.0).tokens == pytest.approx((10 * 90 + 6 * 80) / 16)
