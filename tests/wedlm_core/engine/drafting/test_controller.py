"""The controller on a machine with given rates: it finds the better arm at a bounded loss, and leaves it in time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.controller import Arm, Controller
from wedlm_core.engine.drafting.step_time import HostTime

EXPECTED = dict.fromkeys(Arm, 1000.0)


class Machine:
    """Steps of a tenth of a second per hundred tokens, at the rates that arms have in fact."""

    def __init__(self, rates: Mapping[Arm, float], sequences: int = 8) -> None:
        self.controller = Controller(CONSTANTS, frozenset(rates))
        self.rates, self.sequences = rates, sequences
        self.seconds, self.tokens = 0.0, 0.0
        self.spent = dict.fromkeys(Arm, 0.0)
        self.arms: list[Arm] = []

    def run(self, steps: int, expected: Mapping[Arm, float] = EXPECTED) -> float:
        """Tokens per second of so many steps."""
        seconds, tokens, is_due = self.seconds, self.tokens, True
        for step in range(steps):
            if step % 8 == 0 or is_due:
                self.controller.choose({arm: expected[arm] for arm in self.rates}, self.sequences)
            arm = self.controller.arm
            made = float(self.sequences * (3 if arm.has_masks else 1))
            took = made / self.rates[arm]
            is_due = self.controller.record(made, took)
            self.seconds, self.tokens = self.seconds + took, self.tokens + made
            self.spent[arm] += took
            self.arms.append(arm)
        return (self.tokens - tokens) / (self.seconds - seconds)


@pytest.mark.parametrize("sequences", [1, 8, 64])
@pytest.mark.parametrize("best", list(Arm))
def test_the_best_arm_is_found_although_all_are_expected_to_be_equal(best: Arm, sequences: int) -> None:
    machine = Machine({arm: 1500.0 if arm == best else 1000.0 for arm in Arm}, sequences)
    machine.run(400)
    assert machine.run(2000) >= 0.97 * 1500


def test_trials_of_arms_that_lose_cost_little() -> None:
    machine = Machine({Arm.NONE: 1000.0, Arm.MASKS: 700.0, Arm.HISTORY: 800.0, Arm.HISTORY_AND_MASKS: 600.0})
    machine.run(500)
    assert machine.run(20_000) >= 0.99 * 1000
    assert min(machine.spent.values()) > 0, "else nothing was tried"


def test_an_arm_is_left_when_the_job_changes_and_another_one_is_better() -> None:
    machine = Machine({Arm.NONE: 1000.0, Arm.MASKS: 2000.0})
    machine.run(500)
    assert machine.controller.arm == Arm.MASKS
    machine.rates = {Arm.NONE: 1000.0, Arm.MASKS: 500.0}
    machine.run(100)
    assert machine.run(500) >= 0.95 * 1000


def test_the_first_forwards_of_a_trial_do_not_count() -> None:
    """They load code, and their windows are those of the arm before."""
    machine = Machine({Arm.NONE: 1000.0, Arm.HISTORY: 1.0})
    while machine.controller.arm != Arm.HISTORY:
        machine.run(1)
    machine.run(CONSTANTS.uncounted - 1)  # one has run already
    machine.rates = {Arm.NONE: 1000.0, Arm.HISTORY: 1500.0}
    machine.run(200)
    assert machine.run(200) >= 0.95 * 1500


def test_no_trial_begins_before_the_usual_arm_is_known() -> None:
    machine = Machine(dict.fromkeys(Arm, 1000.0))
    machine.run(2 * CONSTANTS.uncounted)
    assert set(machine.arms) == {Arm.NONE}


def test_arms_near_the_best_are_tried_at_the_start() -> None:
    machine = Machine(dict.fromkeys(Arm, 1000.0))
    machine.run(200)
    assert set(machine.arms) == set(Arm)


def test_an_arm_that_lost_many_trials_is_found_soon_after_it_became_better() -> None:
    machine = Machine({Arm.NONE: 1000.0, Arm.HISTORY: 990.0})
    machine.run(20_000)
    machine.rates = {Arm.NONE: 1000.0, Arm.HISTORY: 1500.0}
    machine.run(2000)
    assert machine.run(500) >= 0.95 * 1500


def test_a_usual_arm_that_was_never_measured_is_tried_before_it_is_given_up() -> None:
    """The table promises it less than it brings; the other arm brings more than that, and less than it."""
    expected = {Arm.NONE: 800.0, Arm.MASKS: 780.0}
    machine = Machine({Arm.NONE: 1000.0, Arm.MASKS: 900.0})
    machine.run(400, expected)
    assert machine.run(2000, expected) >= 0.98 * 1000


def test_an_arm_far_from_the_best_is_tried_only_when_its_budget_allows() -> None:
    expected = {Arm.NONE: 1000.0, Arm.MASKS: 0.9 * CONSTANTS.near * 1000.0}
    machine = Machine({Arm.NONE: 1000.0, Arm.MASKS: 500.0})
    machine.run(200, expected)
    assert machine.spent[Arm.MASKS] == 0
    machine.run(20_000, expected)
    assert 0 < machine.spent[Arm.MASKS] <= 0.01 * machine.seconds


def test_history_alone_is_tried_soon_after_it_paid_together_with_masks() -> None:
    expected = {Arm.NONE: 500.0, Arm.HISTORY: 500.0, Arm.MASKS: 1000.0, Arm.HISTORY_AND_MASKS: 1000.0}
    machine = Machine({Arm.NONE: 500.0, Arm.MASKS: 1000.0, Arm.HISTORY_AND_MASKS: 2000.0, Arm.HISTORY: 3000.0})
    machine.run(400, expected)
    assert machine.run(400, expected) >= 0.95 * 3000


def test_the_controller_follows_a_machine_whose_speed_table_and_acceptance_change() -> None:
    """Each change lasts some seconds; the loss to an oracle that knows the best arm of each is bounded."""
    phases = [
        ({Arm.NONE: 1000.0, Arm.MASKS: 2000.0, Arm.HISTORY: 900.0, Arm.HISTORY_AND_MASKS: 1900.0}, EXPECTED),
        ({Arm.NONE: 500.0, Arm.MASKS: 1000.0, Arm.HISTORY: 450.0, Arm.HISTORY_AND_MASKS: 950.0}, EXPECTED),  # speed
        ({Arm.NONE: 1000.0, Arm.MASKS: 600.0, Arm.HISTORY: 800.0, Arm.HISTORY_AND_MASKS: 500.0}, EXPECTED),  # table
        (
            {Arm.NONE: 1000.0, Arm.MASKS: 3000.0, Arm.HISTORY: 800.0, Arm.HISTORY_AND_MASKS: 2000.0},
            {Arm.NONE: 1000.0, Arm.MASKS: 3000.0, Arm.HISTORY: 1000.0, Arm.HISTORY_AND_MASKS: 3000.0},  # acceptance
        ),
    ]
    machine = Machine(phases[0][0])
    for rates, expected in phases:
        machine.rates = rates
        machine.run(2000, expected)
        assert machine.run(4000, expected) >= 0.95 * max(rates.values())


@pytest.mark.parametrize("drafts", [True, False])
def test_a_slow_step_is_soon_no_measure_of_the_host(drafts: bool) -> None:
    time = HostTime(CONSTANTS.counts_kept)
    time.record(15e-3, drafts=drafts)
    for _ in range(40):
        time.record(2e-4, drafts=drafts)
    assert time.seconds(drafts=drafts) <= 3e-4
    time.record(1.0, drafts=drafts)
    assert time.seconds(drafts=drafts) <= 3e-4, "prompts and ends are no part of a usual step"
    assert time.seconds(drafts=not drafts) == time.seconds(drafts=drafts), "the other kind is not known"
    for _ in range(400):
        time.record(4e-4, drafts=drafts)
    assert time.seconds(drafts=drafts) >= 3.5e-4, "it follows a host that became slower"


def test_a_kernel_that_the_first_step_with_drafts_compiles_is_no_measure_of_the_host() -> None:
    time = HostTime(CONSTANTS.counts_kept)
    for _ in range(10):
        time.record(2e-4, drafts=False)
    time.record(5.0, drafts=True)
    assert time.seconds(drafts=True) <= 3e-4


def test_an_arm_that_became_better_is_found_by_a_trial() -> None:
    machine = Machine({Arm.NONE: 1000.0, Arm.HISTORY: 900.0})
    machine.run(2000)
    machine.rates = {Arm.NONE: 1000.0, Arm.HISTORY: 2000.0}
    machine.run(6000)
    assert machine.run(500) >= 0.95 * 2000


def test_a_difference_below_the_least_gain_switches_nothing() -> None:
    machine = Machine({Arm.NONE: 1000.0, Arm.MASKS: 1010.0})
    machine.run(5000)
    assert machine.spent[Arm.NONE] > 0.9 * machine.seconds
