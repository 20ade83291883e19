"""The table of step costs, its fit to measurements, and what a step takes besides; all as plain logic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.step_cost import CostSample, fit, monotone
from wedlm_core.engine.windows.step_time import HostTime, Load, StepTimes


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


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(0, 2)), min_size=1, max_size=6, unique_by=lambda knot: knot[0]),
    st.integers(0, 5000), st.integers(0, 9000), st.integers(0, 70), st.sampled_from([1, 16]),
)  # fmt: skip
def test_the_cost_of_one_forward_is_that_of_an_array_of_one(
    steps: list[tuple[int, float]], rows: int, kv_tokens: int, sequences: int, quantum: int
) -> None:
    knots, seconds = zip(*sorted(steps), strict=True)
    cost = StepCost(
        rows=knots, seconds=tuple(np.cumsum(seconds)), per_sequence=0.1, per_kv=1e-3, per_row_kv=1e-4, quantum=quantum
    )
    expected = cost(np.array([rows]), kv_tokens, sequences)[0]
    assert cost.one(rows, kv_tokens, sequences) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("quantum", [1, 16])
@pytest.mark.parametrize("sequences", [1, 4])
def test_step_times_are_the_loads_seconds_looked_up(sequences: int, quantum: int) -> None:
    cost = replace(StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=64), quantum=quantum)
    load = Load(cost=cost, host_seconds=0.1)
    rows = np.array([10.0, 64.0, 71.0, 100.0])
    times = StepTimes(load, sequences, 100.0)
    np.testing.assert_allclose(times.at(rows), load.seconds(rows, sequences))
    assert times.one(100.0) == pytest.approx(float(load.seconds(rows, sequences)[3]))
    assert times.slope(64.0) == pytest.approx(0.01, rel=0.5 if quantum > 1 else 1e-6)


def test_padding_costs_the_mean_over_rows_that_vary() -> None:
    load = Load(cost=replace(StepCost.linear(fixed=0.0, per_row=0.01), quantum=16))
    rows = np.array([31.0, 32.0, 33.0])
    about = np.array([load.cost(np.arange(r - 8, r + 8) + 0.5, 0.0, 4).mean() for r in rows])
    np.testing.assert_allclose(load.seconds(rows, 4), about, rtol=1e-3)


def test_host_time_of_a_step_is_told_apart_from_that_of_sequences_that_come_and_go() -> None:
    rng, host = np.random.default_rng(0), HostTime()
    assert host.per_step() == 0.0
    for _ in range(300):
        turnover = int(rng.poisson(5))
        host.took(1e-3 + 2e-4 * turnover + float(rng.normal(0, 1e-4)), turnover)
    assert host.per_step() == pytest.approx(1e-3, rel=0.15)
    host.took(60.0, 0)  # the machine slept
    assert host.per_step() < 2e-3
