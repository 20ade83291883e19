"""What steps take: padding, the host's time, and the correction of a table that is wrong where forwards run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.engine.planning_oracle import forward_seconds
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.step_time import CostCorrection, HostTime, Load


def test_padding_costs_the_mean_over_rows_that_vary() -> None:
    load = Load(cost=replace(StepCost.linear(fixed=0.0, per_row=0.01), quantum=16))
    rows = np.array([31.0, 32.0, 33.0])
    about = np.array([load.cost(np.arange(r - 8, r + 8) + 0.5, 0.0, 4).mean() for r in rows])
    np.testing.assert_allclose(load.seconds(rows, 4), about, rtol=1e-3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([1, 4, 64]))
def test_seconds_are_those_of_arrays(seed: int, knots: int, quantum: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(300, knots, replace=False)) + 1
    slopes = dict(zip(("per_sequence", "per_kv", "per_row_kv"), rng.random(3).tolist(), strict=True))
    cost = StepCost(
        rows=tuple(rows.tolist()), seconds=tuple(np.sort(rng.random(knots) + 0.1).tolist()), quantum=quantum, **slopes
    )
    load = Load(cost=cost, host_seconds=0.3, kv_tokens=float(rng.integers(0, 900)))
    wanted = np.concatenate([rng.random(20) * 400, rows, rows + 0.5])
    np.testing.assert_allclose(load.seconds(wanted, 5), forward_seconds(load, wanted, 5), rtol=1e-12)


@pytest.mark.parametrize("quantum", [1, 16])
def test_the_slope_is_what_a_row_costs_once_the_free_ones_are_taken(quantum: int) -> None:
    load = Load(cost=replace(StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=64), quantum=quantum))
    assert load.slope(20.0, 4) == pytest.approx(0.0, abs=1e-12)
    assert load.slope(128.0, 4) == pytest.approx(0.01, rel=1e-6)


@given(st.integers(1, 600), st.sampled_from([1, 8, 32]))
def test_bounds_cost_what_a_forward_of_so_many_rows_rounded_up_takes(rows: int, quantum: int) -> None:
    """They do not vary: half a quantum more would put a forward that ends before a jump half way up it."""
    cost = StepCost(rows=(1, 128, 160, 256, 600), seconds=(3.0, 4.0, 6.0, 6.5, 9.0), per_kv=0.1, quantum=quantum)
    load = Load(cost=cost, kv_tokens=7.0, are_bounds=True)
    assert load.seconds(np.array([float(rows)]), 4)[0] == pytest.approx(cost(np.array([rows]), 7.0, 4)[0])


def test_of_bounds_a_jump_is_shared_by_the_rows_up_to_twice_as_many() -> None:
    jump = StepCost(rows=(8, 128, 136, 256), seconds=(4.0, 4.0, 6.0, 6.0), quantum=8)
    assert Load(cost=jump, are_bounds=True).slope(128.0, 128) == pytest.approx(2.0 / 128)


def test_host_time_is_the_mean_over_recent_steps_and_outlives_a_machine_that_slept() -> None:
    rng, host = np.random.default_rng(0), HostTime()
    assert host.fixed(drafts=True) == host.fixed(drafts=False) == 0.0
    for seconds in (5e-3, 1e-3):
        for _ in range(500):
            host.record(seconds + float(rng.normal(0, 1e-4)), 32.0, drafts=True)
        assert host.fixed(drafts=True) == pytest.approx(seconds, rel=0.05), "steps that commit alike"
    host.record(60.0, 32.0, drafts=True)
    assert host.fixed(drafts=True) < 1.1e-3
    assert host.fixed(drafts=False) == host.fixed(drafts=True), "no step without drafts was seen"


def test_a_step_that_loads_what_later_ones_find_does_not_make_drafts_dear() -> None:
    """Windows that are closed for it would never be opened again: only steps with drafts say what these take."""
    host = HostTime()
    for _ in range(50):
        host.record(1e-3, 8.0, drafts=False)
    for slow in (0.2, 0.2):  # the first, and one more
        host.record(slow, 12.0, drafts=True)
    assert host.fixed(drafts=True) <= 3 * host.fixed(drafts=False) * 1.001
    for _ in range(300):
        host.record(1.4e-3, 12.0, drafts=True)
    assert host.fixed(drafts=True) == pytest.approx(1.4e-3, rel=0.1)


@pytest.mark.parametrize("others", [0, 1, 20])
def test_host_time_that_goes_with_sequences_that_come_in_is_not_fixed(others: int) -> None:
    """Steps without drafts would be thought dear where nearly all of them are those in which sequences come in."""
    rng, host = np.random.default_rng(0), HostTime()
    for _ in range(200):
        admitted = int(rng.integers(1, 9))
        host.record(1e-3 + 2e-5 * 8 + 4e-4 * admitted, 8.0, drafts=False, admitted=admitted)
        for _ in range(others):
            host.record(1e-3 + 2e-5 * 8, 8.0, drafts=False)
        # What comes in commits little at first: taken for themselves, commits would seem to spare time.
        host.record(1.2e-3 + 2e-5 * (90 - 9 * admitted) + 4e-4 * admitted, 90 - 9.0 * admitted, drafts=True,
                    admitted=admitted)  # fmt: skip
        host.record(1.2e-3 + 2e-5 * admitted, float(admitted), drafts=True)
    assert host.fixed(drafts=False) == pytest.approx(1e-3, rel=0.1)
    assert host.fixed(drafts=True) == pytest.approx(1.2e-3, rel=0.1)


@pytest.mark.parametrize("per_commit", [0.0, 2e-5, -2e-5])
def test_host_time_that_goes_with_commits_is_not_fixed(per_commit: float) -> None:
    rng, host, total = np.random.default_rng(0), HostTime(), 0.0
    for _ in range(500):
        commits = float(rng.integers(0, 100))
        host.record(3e-3 + per_commit * commits + float(rng.normal(0, 1e-5)), commits, drafts=True)
        host.record(2e-3 + per_commit * 20 + float(rng.normal(0, 1e-5)), 20.0, drafts=False)
        total = 0.99 * total + 0.01 * commits
    for drafts, fixed, commits in ((True, 3e-3, total), (False, 2e-3, 20.0)):
        expected = fixed + min(0.0, per_commit) * commits
        assert host.fixed(drafts=drafts) == pytest.approx(expected, rel=0.05), drafts
    nothing = HostTime()
    for _ in range(9):
        nothing.record(1e-3, 0.0, drafts=False)
    assert nothing.fixed(drafts=False) == pytest.approx(1e-3)


def test_a_table_that_is_wrong_where_forwards_run_is_corrected_there() -> None:
    measured = StepCost(rows=(16, 64, 256, 1024), seconds=(1.0, 1.1, 1.5, 3.0))
    correction = CostCorrection()
    assert correction.corrected(measured) == measured
    for _ in range(200):
        correction.record(64, 1.1, 1.1)
        correction.record(1024, 6.0, 3.0)
    seconds = correction.corrected(measured).seconds
    assert seconds[1] == pytest.approx(1.1, rel=1e-6)
    assert seconds[3] == pytest.approx(6.0, rel=1e-6)
    assert list(seconds) == sorted(seconds)
    between = float(correction.corrected(measured)(np.array([256.0]), 0.0, 1)[0])
    correction.record(256, between, 1.5)
    assert correction.corrected(measured)(np.array([256.0]), 0.0, 1)[0] == pytest.approx(between), "as nearby"
    disturbed = CostCorrection()
    disturbed.record(64, 1000.0, 1.1)
    assert disturbed.corrected(measured).seconds[1] < 1.7


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.6])
def test_forwards_that_do_not_run_become_faster_and_slower_with_those_that_do(speed: float) -> None:
    """Else wider forwards seem dear as soon as the machine is quicker, and drafts of which all are right too dear."""
    table = StepCost(rows=(16, 32, 64, 128), seconds=(1.0, 1.5, 2.5, 4.5))
    rng, correction = np.random.default_rng(0), CostCorrection()

    def forwards(rows: int, number: int, factor: float) -> None:
        expected = float(table(np.array([rows]), 0.0, 1)[0])
        for _ in range(number):
            correction.record(rows, expected * factor * float(np.exp(rng.normal(0, 0.05))), expected)

    for _ in range(4):  # the table is wrong by a fifth about 64 rows
        forwards(32, 30, 1.0)
        forwards(64, 4, 1.2)
    forwards(32, 40, speed)
    found = correction.corrected(table)(np.array([32.0, 64.0, 128.0]), 0.0, 1)
    assert found[0] == pytest.approx(1.5 * speed, rel=0.1)
    assert found[1:] / found[0] == pytest.approx([2.5 * 1.2 / 1.5, 4.5 * 1.2 / 1.5], rel=0.15), "wider ones with them"


def test_a_clock_that_stood_still_corrects_little_and_no_number_nothing() -> None:
    correction, table = CostCorrection(), StepCost(rows=(1,), seconds=(1.0,))
    for seconds, expected in ((math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.inf)):
        correction.record(1, seconds, expected)
    assert correction.corrected(table) == table
    correction.record(1, 0.0, 1.0)
    assert correction.corrected(table).seconds[0] > 0.5


@pytest.mark.parametrize("forwards", [100, 20_000])
def test_rows_that_did_not_run_for_long_are_no_more_open_than_those_that_never_did(forwards: int) -> None:
    """One that was disturbed would make them dear 23 times over, and it would be long until another says otherwise."""
    table, correction = StepCost(rows=(8, 64), seconds=(1.0, 2.0)), CostCorrection()
    for _ in range(20):
        correction.record(8, 1.0, 1.0)
        correction.record(64, 2.0, 2.0)
    for _ in range(forwards):
        correction.record(8, 1.0, 1.0)
    correction.record(64, 200.0, 2.0, times=2)
    assert correction.corrected(table).seconds[1] < 2.0 * 1.7


def test_a_table_that_ends_before_the_rows_that_run_is_corrected_beyond_its_end() -> None:
    few = StepCost(rows=(4, 8, 16, 32), seconds=(3.0, 3.0, 3.0, 6.2))
    correction = CostCorrection()
    for _ in range(200):
        for rows, seconds in ((64, 5.0), (512, 40.0)):
            correction.record(rows, seconds, float(few(np.array([rows]), 0.0, 1)[0]))
    corrected = correction.corrected(few)(np.array([64.0, 512.0, 1024.0]), 0.0, 1)
    assert corrected[:2] == pytest.approx([5.0, 40.0], rel=1e-3)
    assert corrected[2] < 100.0 < few(np.array([1024.0]), 0.0, 1)[0]
