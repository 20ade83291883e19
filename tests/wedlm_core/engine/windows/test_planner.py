"""The planner follows what forwards bring: new sequences, probes, a job that turns hard."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import PlannerTuning

COUNT, WIDE = 8, 32
CHEAP = StepCost.linear(fixed=1e-3, per_row=1e-5, floor_rows=8)


def windows(
    forwards: int,
    acceptance: Callable[[int], float],
    *,
    tuning: PlannerTuning | None = None,
    renew: int = 10,
) -> np.ndarray:
    """``[forwards, COUNT]`` masks where drafts are right with this probability; slots change hands at ``renew``."""
    rng, table, slots = np.random.default_rng(3), SlotTable(COUNT, WIDE), np.arange(COUNT)
    table.adaptive[:], table.widest[:], table.limit[:] = True, WIDE, 10**6
    planner = WindowPlanner(table, WIDE, 1 << 20, tuning or PlannerTuning())
    yes, empty, found = np.ones(COUNT, np.bool_), np.zeros((COUNT, 0)), []
    for forward in range(forwards):
        if forward % renew == 0:
            planner.admit(slots, COUNT)  # a sequence's own past is short
        planner.plan(slots, CHEAP, 1 << 20)
        drafts = table.masks.copy()
        right = (rng.random((COUNT, WIDE)) < acceptance(forward)).cumprod(axis=1).sum(axis=1)
        agreed = np.minimum(right, drafts)
        table.rows[:] = 1 + 2 * drafts
        outcome = StepOutcome(
            count_D=1 + agreed, next_rows_D=table.rows, context_D=1 + agreed, drafts_D=drafts, agreed_D=agreed,
            offered_D=drafts, valid_D=yes, next_valid_D=yes, token_DC=empty.astype(np.int64),
            early_DC=empty.astype(np.bool_), entropy_DC=empty.astype(np.float32),
            logprob_DC=empty.astype(np.float32),
        )  # fmt: skip
        planner.observe(slots, table.rows.copy(), outcome, 1 + agreed, ~yes, 0, table.source[slots])
        found.append(drafts)
    return np.array(found)


def test_many_more_sequences_than_were_planned_for_are_planned_for_at_once() -> None:
    table = SlotTable(64, WIDE)
    table.adaptive[:], table.widest[:], table.limit[:], table.masks[:] = True, 4, 10**6, -1
    planner, cost = WindowPlanner(table, 4, 1 << 20), StepCost.linear(fixed=1e-3, per_row=1e-3)
    one = np.array([0])
    assert not planner.admit(one, 1)
    assert planner.plan(one, cost, 1 << 20)
    crowd = np.arange(64)
    assert not planner.admit(crowd[1:], 64)
    assert planner.plan(crowd, cost, 1 << 20)
    assert planner.admit(np.array([5]), 64)


def test_a_job_that_turns_hard_is_most_of_the_way_to_the_windows_of_a_hard_one_within_fifty_forwards() -> None:
    easy, hard = (windows(200, lambda _, p=p: p)[100:].mean() for p in (0.97, 0.5))
    turned = windows(200, lambda forward: 0.97 if forward < 100 else 0.5)[150:].mean()
    assert easy > 2 * hard
    assert turned - hard < 0.2 * (easy - hard)


def test_a_job_that_turns_easy_is_found_out_by_probes_only() -> None:
    def masks(share: float) -> tuple[float, float]:
        """Before it turns, and at the end."""
        tuning = PlannerTuning(probe_share=share)
        found = windows(4000, lambda forward: 0.0 if forward < 400 else 1.0, tuning=tuning, renew=10**6)
        return float(found[300:400].mean()), float(found[-200:].mean())

    (hard, easy), (before, after) = masks(0.01), masks(0.0)
    assert hard < 0.5 < 4 < easy
    assert before == after == 0.0
