"""The table of step costs and its fit to measurements, as plain logic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.cost_table import CostSample, fit, monotone


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_a_monotone_fit_never_falls_and_keeps_the_mean(values: list[float]) -> None:
    fitted = monotone(values)
    assert (np.diff(fitted) >= -1e-9).all()
    assert fitted.mean() == pytest.approx(np.mean(values), abs=1e-9)


def test_a_cost_table_is_recovered_from_noisy_measurements() -> None:
    truth = StepCost.linear(fixed=1e-3, per_row=2e-5, per_kv=1e-7, floor_rows=32)
    rng = np.random.default_rng(1)
    samples = [
        CostSample(
            rows=rows, sequences=8, context=context,
            seconds=float(truth(np.array([rows]), 8 * context, 8)[0] * rng.uniform(0.97, 1.03)),
        )
        for rows in (16, 32, 64, 128, 256, 512, 1024)
        for context in (64, 2048)
    ]  # fmt: skip
    got = fit(samples)
    for rows, context in ((48, 64), (300, 1000), (2000, 2048)):
        want = truth(np.array([rows]), 8 * context, 8)[0]
        assert got(np.array([rows]), 8 * context, 8)[0] == pytest.approx(want, rel=0.15)


def test_what_measurements_leave_open_is_put_down_to_rows() -> None:
    """Sequences in proportion to rows: nothing tells which of the two costs the time."""
    truth = StepCost.linear(fixed=2e-2, per_row=4e-4)
    samples = [
        CostSample(
            rows=rows, sequences=rows // 16, context=64, seconds=float(truth(np.array([rows]), 64 * rows // 16, 1)[0])
        )
        for rows in (16, 32, 64, 128)
    ]
    got = fit(samples)
    for rows in (16, 32, 100):
        want = truth(np.array([rows]), 0.0, 1)[0]
        assert got(np.array([rows]), 32.0 * 64, 32)[0] == pytest.approx(want, rel=0.35)
    assert got.seconds[-1] > 2.5 * got.seconds[0]


def test_what_a_row_costs_alone_is_not_told_by_what_it_costs_among_many() -> None:
    """A row on its own path, and 16 rows of one sequence or of 16: each ratio is that of the samples."""
    seconds = {(1, 1): 1.0, (2, 1): 1.1, (2, 2): 1.15, (16, 1): 1.8, (16, 16): 2.6, (32, 2): 3.0, (32, 32): 4.6}
    samples = [
        CostSample(rows=rows, sequences=own, context=64, seconds=1e-3 * one) for (rows, own), one in seconds.items()
    ]
    got = fit(samples)
    ratios = [one.seconds / got(np.array([one.rows]), one.sequences * 64.0, one.sequences)[0] for one in samples]
    assert max(ratios) / min(ratios) < 1.1
    alone, sixteen = (float(got(np.array([rows]), 64.0, 1)[0]) for rows in (1, 16))
    assert sixteen / alone == pytest.approx(1.8, rel=0.1)
