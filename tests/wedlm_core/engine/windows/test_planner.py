"""The planner follows what forwards bring: new sequences, probes, a job that turns hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import PlannerTuning
from wedlm_core.statistics import DraftSource

COUNT, WIDE = 8, 32
CHEAP = StepCost.linear(fixed=1e-3, per_row=1e-5, floor_rows=8)


def windows(
    forwards: int,
    acceptance: Callable[[int], float],
    *,
    tuning: PlannerTuning | None = None,
    renew: int = 10,
    forced: int = 0,
    ends: bool = False,
) -> np.ndarray:
    """``[forwards, COUNT]`` masks where drafts are right with this probability; slots change hands at ``renew``.

    A grammar forces so many tokens of each forward, behind the drafts; with ``ends`` outputs end where slots change.
    """
    rng, table, slots = np.random.default_rng(3), SlotTable(COUNT, WIDE), np.arange(COUNT)
    table.adaptive[:], table.widest[:], table.limit[:] = True, WIDE, 10**6
    table.constrained[:] = forced > 0
    planner = WindowPlanner(table, WIDE, 1 << 20, tuning or PlannerTuning())
    yes, empty, found = np.ones(COUNT, np.bool_), np.zeros((COUNT, 0)), []
    for forward in range(forwards):
        if forward % renew == 0:
            planner.admit(slots, COUNT)  # a sequence's own past is short
            table.generated[:] = 0
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
        source_DC = np.zeros((COUNT, 2 * WIDE + forced), np.int8)
        behind_DC = np.arange(source_DC.shape[1]) - agreed[:, None]
        source_DC[(behind_DC >= 0) & (behind_DC < forced)] = DraftSource.GRAMMAR
        outcome = replace(outcome, offered_D=drafts + forced, agreed_D=agreed + forced)
        ended = np.full(COUNT, ends and forward % renew == renew - 1)
        table.generated[:] += 1 + agreed + forced
        planner.observe(slots, table.rows.copy(), outcome, 1 + agreed + forced, ended, 0, source_DC)
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


def test_where_a_grammar_forces_much_there_are_fewer_masks() -> None:
    free, constrained = (windows(200, lambda _: 0.9, forced=forced)[50:].mean() for forced in (0, 24))
    assert constrained < 0.8 * free


def test_outputs_of_a_few_forwards_get_fewer_masks_than_long_ones() -> None:
    long, short = (windows(200, lambda _: 0.95, renew=2, ends=ends)[50:].mean() for ends in (False, True))
    assert 0 < short < 0.9 * long


@pytest.mark.parametrize("prompt", [0, 30])
def test_what_a_draft_has_to_bring_does_not_depend_on_prefill(prompt: int) -> None:
    """A draft pays where forwards of decode rows bring more per second with it: prompts are read in any case."""
    cost, slots, table = StepCost.linear(fixed=1.0, per_row=0.1, floor_rows=1), np.arange(COUNT), SlotTable(COUNT, 2)
    table.adaptive[:], table.widest[:], table.limit[:], table.rows[:] = True, 1, 10**6, 1
    planner, ones, none = WindowPlanner(table, 1, 1 << 20), np.ones(COUNT, np.int64), np.zeros((COUNT, 0))
    nothing, no = 0 * ones, ones < 0
    outcome = StepOutcome(
        count_D=ones, next_rows_D=ones, context_D=ones, drafts_D=nothing, agreed_D=nothing, offered_D=nothing,
        valid_D=no, next_valid_D=no, token_DC=none.astype(np.int64), early_DC=none.astype(np.bool_),
        entropy_DC=none.astype(np.float32), logprob_DC=none.astype(np.float32),
    )  # fmt: skip
    for _ in range(400):
        planner.plan(slots, cost, 1 << 20)
        planner.observe(slots, ones, outcome, ones, no, prompt, np.zeros((COUNT, 2), np.int8))
    assert not table.masks.any()
    alone = float(cost(np.array([COUNT]), 0, COUNT)[0])
    assert planner.seconds_of(COUNT) == pytest.approx(alone, rel=0.05)
    assert planner.row_price == pytest.approx(COUNT * 0.1 / alone, rel=0.05)
