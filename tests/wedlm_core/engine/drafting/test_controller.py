"""The controller on a machine with given rates: it finds the better arm at a bounded loss, and leaves it in time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.controller import Arm, Controller, Measured
from wedlm_core.engine.drafting.step_time import StepTime

EXPECTED = dict.fromkeys(Arm, 1000.0)


class Machine:
    """Steps of a tenth of a second per hundred tokens, at the rates that arms have in fact."""

    def __init__(self, rates: Mapping[Arm, float], sequences: int = 8) -> None:
        self.controller = Controller(CONSTANTS, frozenset(rates), StepTime(CONSTANTS))
        self.rates, self.sequences = rates, sequences
        self.seconds, self.tokens = 0.0, 0.0
        self.spent = dict.fromkeys(Arm, 0.0)

    def run(self, steps: int, expected: Mapping[Arm, float] = EXPECTED) -> float:
        """Tokens per second of so many steps."""
        seconds, tokens = self.seconds, self.tokens
        for step in range(steps):
            if step % 8 == 0 or self.controller.is_due:
                self.controller.choose({arm: expected[arm] for arm in self.rates}, self.sequences)
            arm = self.controller.arm
            made = float(self.sequences * (3 if arm.has_masks else 1))
            took = made / self.rates[arm]
            self.controller.record(Measured(tokens=made, seconds=took))
            self.seconds, self.tokens = self.seconds + took, self.tokens + made
            self.spent[arm] += took
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


def test_a_first_trial_that_loads_code_does_not_leave_the_best_arm_out() -> None:
    machine = Machine({Arm.MASKS: 1000.0, Arm.NONE: 500.0, Arm.HISTORY_AND_MASKS: 300.0})
    while machine.controller.arm != Arm.HISTORY_AND_MASKS:
        machine.run(1)
    while not machine.controller.is_due:
        machine.run(1)
    machine.rates = {**machine.rates, Arm.HISTORY_AND_MASKS: 1500.0}
    machine.run(200)
    assert machine.run(200) >= 0.95 * 1500


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_slow_first_step_is_soon_no_measure_of_the_host(is_usual: bool) -> None:
    time = StepTime(CONSTANTS)
    time.record_host(15e-3, drafts=True, is_usual=True)
    for _ in range(40):
        time.record_host(2e-4, drafts=True, is_usual=is_usual)
    assert time.host_seconds(drafts=True) <= 3e-4
    time.record_host(1.0, drafts=True, is_usual=False)
    assert time.host_seconds(drafts=True) <= 3e-4, "prompts and ends are no part of a usual step"


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
