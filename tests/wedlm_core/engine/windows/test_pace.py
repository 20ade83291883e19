"""Plans take a small share of the time, whatever forwards take, and follow each other fast where that is little."""

from __future__ import annotations

import itertools
import math

import pytest

from wedlm_core.engine.windows.pace import Pace
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING

PLAN = 5e-4  # seconds
LEAST = 8  # forwards


def planned(
    pace: Pace, forwards: int, step: float, *, same: bool = False, tried: bool = False, plan: float = PLAN
) -> list[int]:
    """Forwards behind which it planned, of so many that take ``step`` seconds each."""
    found = []
    for forward in range(forwards):
        if pace.is_due:
            pace.begin()
            pace.follow(LEAST, same=same, masks=not same, tried=tried)
            pace.record_plan(plan, whole=True)
            found.append(forward)
        pace.age += 1
        pace.seconds += step
    return found


@pytest.mark.parametrize("step", [1e-4, 5e-4, 2e-3])
def test_plans_that_change_windows_take_their_share_of_the_time(step: float) -> None:
    pace = Pace()
    planned(pace, 5000, step)
    count = len(planned(pace, 20_000, step))
    assert count * PLAN == pytest.approx(DEFAULT_TUNING.plan_share * 20_000 * step, rel=0.1)


@pytest.mark.parametrize("step", [1e-4, 5e-4, 2e-3, 1e-2])
def test_plans_that_change_nothing_take_less(step: float) -> None:
    pace = Pace()
    planned(pace, 5000, step, same=True)
    count = len(planned(pace, 20_000, step, same=True))
    assert count * PLAN <= DEFAULT_TUNING.quiet_share * 20_000 * step * 1.1
    least_often = DEFAULT_TUNING.most_patience_alone * LEAST
    assert count <= 20_000 / least_often * 1.01, "and are no more often than patience has them"


def test_where_forwards_are_long_each_plan_is_made_that_is_due() -> None:
    assert planned(Pace(), 800, 0.1) == list(range(0, 800, LEAST))


def test_a_job_that_begins_has_plans_to_learn_by() -> None:
    step = 1e-4
    found = planned(Pace(), 400, step)
    assert found[:10] == [LEAST * n for n in range(10)], "a plan each time, five times as long as the forwards between"
    assert len(found) < 20


def test_plans_that_were_due_whatever_was_saved_leave_some_time_for_the_next() -> None:
    """Each burst of short requests had some; of the hours that they owed, no other load got any plan."""
    pace, step = Pace(), 1e-4
    planned(pace, 5000, step)
    for _ in range(1000):
        pace.hurry()
        assert planned(pace, 1, step) == [0]
    found = planned(pace, 5000, step)
    assert found[0] < 3 * PLAN / (DEFAULT_TUNING.plan_share * step)
    assert len(found) * PLAN > 0.7 * DEFAULT_TUNING.plan_share * 5000 * step


@pytest.mark.parametrize("disturbed", [1, 2, 3])
def test_a_disturbance_while_a_job_begins_does_not_last(disturbed: int) -> None:
    pace, step = Pace(), 1e-3
    for number in range(4):
        pace.wait = 0
        assert planned(pace, 1, step, plan=1.0 if number == disturbed else PLAN) == [0]
    assert pace.forwards_of(1) < 5 * PLAN / step
    assert len(planned(pace, 2000, step)) > 40
    assert pace.forwards_of(1) == pytest.approx(PLAN / step, rel=0.5)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 0.0])
def test_a_clock_that_jumps_is_not_believed(seconds: float) -> None:
    pace = Pace()
    planned(pace, 100, 1e-3)
    for _ in range(5):
        pace.record_plan(seconds, whole=True)
        pace.seconds += seconds
    assert len(planned(pace, 2000, 1e-3)) > 40
    assert len(planned(pace, 2000, 1e-3, same=True)) > 2


def test_after_a_quiet_time_some_plans_follow_each_other() -> None:
    """A job that changes is answered at once."""
    pace = Pace()
    planned(pace, 5000, 1e-4)
    planned(pace, 20_000, 1e-4, same=True)
    pace.patience, pace.wait = 1, 0
    found = planned(pace, 20 * LEAST, 1e-4)
    assert 12 <= len(found) <= 18


def test_what_is_tried_ends_in_time_whatever_plans_took() -> None:
    pace = Pace()
    planned(pace, 5000, 1e-4)
    assert len(planned(pace, 800, 1e-4)) < 10
    found = planned(pace, 2000, 1e-4, tried=True)
    assert len(found) > 100
    assert {later - before for before, later in itertools.pairwise(found)} == {LEAST}


def test_a_comparison_is_waited_for() -> None:
    pace = Pace()
    pace.begin()
    pace.patience = 16
    pace.follow(LEAST, same=True, masks=False, tried=True, visits=100)
    assert pace.wait == 100


def test_without_any_step_that_was_timed_there_is_no_budget() -> None:
    assert planned(Pace(), 800, 0.0) == list(range(0, 800, LEAST))


def test_a_machine_that_slept_gives_no_more_than_what_can_be_saved() -> None:
    pace = Pace()
    planned(pace, 5000, 1e-4)
    pace.seconds += 1e4
    pace.age += 1
    assert len(planned(pace, 40 * LEAST, 1e-4)) < 20


def test_a_plan_that_was_disturbed_does_not_stop_those_behind_it() -> None:
    pace = Pace()
    planned(pace, 5000, 1e-4)
    pace.record_plan(10.0, whole=True)
    assert len(planned(pace, 20_000, 1e-4)) > 50


def test_what_corrects_the_table_is_timed_about_twice_a_plan() -> None:
    pace, timed, plans = Pace(), 0, 0
    for _ in range(20_000):
        plans += len(planned(pace, 1, 1e-4))
        timed += pace.is_timed
    assert plans < timed < 5 * plans


def test_nothing_is_known_of_what_plans_take_before_any_was_timed() -> None:
    pace = Pace()
    assert pace.forwards_of(3) == 0.0
    planned(pace, 100, 1e-3)
    assert pace.forwards_of(3) == pytest.approx(3 * PLAN / 1e-3)


def test_a_plan_may_be_due_at_once_whatever_plans_took_and_the_next_one_soon() -> None:
    pace = Pace()
    planned(pace, 5000, 1e-4)
    planned(pace, 20_000, 1e-4, same=True)
    waited = pace.patience * LEAST
    pace.hurry()
    found = planned(pace, 2 * waited, 1e-4, same=True)
    assert found[0] == 0
    assert found[1] == 4 * LEAST < waited
    assert found[2] == 12 * LEAST, "then as seldom again"
