"""The planner follows what forwards bring: new sequences, probes, a job that turns hard."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testing.engine.planned import CHEAP, COUNT, WIDE, observe_heads, planned, table_of
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import PlannerTuning
from wedlm_core.statistics import DraftSource


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


def test_for_half_as_many_sequences_is_planned_at_once() -> None:
    """The last of a job may have masks, where many together had none: they would wait for what is planned seldom."""
    planner, table = planned()
    slots, dear = np.arange(COUNT), StepCost.linear(fixed=1e-3, per_row=1e-3)
    for _ in range(500):
        observe_heads(planner, table)
        planner.plan(slots, dear, 1 << 20)
    planner._pace.wait = planner._pace.age + 1000
    assert not planner.plan(slots, dear, 1 << 20)
    assert not planner.plan(slots[: COUNT // 2 + 1], dear, 1 << 20)
    assert planner.plan(slots[: COUNT // 2], dear, 1 << 20)
    planner._pace.wait = planner._pace.age + 1000
    assert not planner.plan(slots[: COUNT // 2], dear, 1 << 20), "once"
    assert planner.plan(slots[: COUNT // 4], dear, 1 << 20)


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


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("running", [1, COUNT])
def test_sequences_about_to_end_leave_masks_to_those_that_follow(running: int, left: int) -> None:
    """Where all had a token or two to go, the next ones began with as few masks, up to the plan behind that."""
    table, slots = table_of(COUNT), np.arange(running)
    table.generated[:] = 10
    given = []
    for limit in (10**6, 10 + left):
        planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0))
        table.limit[:] = limit
        assert planner.plan(slots, CHEAP, 1 << 20)
        assert planner.admit(slots[:1], running)
        given.append(table.masks[0])
    assert given[0] == given[1] > 1


def test_sequences_of_short_outputs_get_no_masks_beyond_their_end() -> None:
    """Of outputs of twelve tokens none has 32 to go: planned as if they had, they got masks that did not pay."""
    table, slots = table_of(COUNT), np.arange(COUNT)
    table.limit[:], table.generated[:] = 12, 8
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0))
    assert planner.plan(slots, CHEAP, 1 << 20)
    assert 0 < table.masks[slots].max() <= 4


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
    for drafts in (1, 7, 100):
        assert planner.price_of(COUNT, drafts) == pytest.approx(COUNT * 0.1 / alone, rel=0.05)


def test_while_nothing_is_learned_a_plan_without_masks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, table = planned()
    made: list[int] = []
    monkeypatch.setattr(planner, "_apply", lambda slots, *_, **__: made.append(len(slots)) or True)
    slots, dear = np.arange(COUNT), StepCost.linear(fixed=1e-3, per_row=1e-3)

    def plans(forwards: int, running: int = COUNT, drafts: int = 0) -> int:
        """How many are made anew within so many forwards."""
        made.clear()
        for _ in range(forwards):
            observe_heads(planner, table, drafts=drafts)
            planner.plan(slots[:running], dear, 1 << 20)
        return len(made)

    assert plans(500) == 0
    assert plans(500) == 1, "now and then all the same"
    assert plans(160, drafts=1) >= 1, "drafts tell something"
    assert plans(128, running=COUNT // 2) >= 1, "so does another number of sequences"
    assert plans(200) <= 1
    monkeypatch.setattr(type(planner._race), "is_due", lambda *_: True)
    assert plans(300) >= 2, "a comparison of masks with none is due"


@pytest.mark.parametrize("drafts", [0, 1])
def test_plans_take_a_small_share_of_the_time_of_small_forwards(drafts: int) -> None:
    """They took a twentieth of it, as many of them as there are beside forwards that take a hundred times as long."""
    now = itertools.count()
    table = table_of(COUNT)
    planner = WindowPlanner(table, WIDE, 1 << 20, clock=lambda: 5e-4 * next(now))  # each plan asks for it twice
    slots, dear, made, step = np.arange(COUNT), StepCost.linear(fixed=1e-3, per_row=1e-3), 0, 1.5e-4
    planner.plan(slots, dear, 1 << 20)
    for forward in range(20_000):
        observe_heads(planner, table, drafts=drafts)
        planner.record_step(step)
        before = planner._pace.age
        planner.plan(slots, dear, 1 << 20)
        made += forward >= 5000 and planner._pace.age < before
    assert made * 5e-4 < 0.006 * 15_000 * step
    assert made > 5


def test_bursts_of_short_requests_have_few_plans_and_the_job_behind_them_enough() -> None:
    """Half as many sequences, and half of these, were planned for at once in each of them, whatever plans took."""
    now, step, plan = itertools.count(), 1.5e-4, 5e-4
    table = table_of(COUNT)
    planner = WindowPlanner(table, WIDE, 1 << 20, clock=lambda: plan * next(now))  # each plan asks for it twice
    slots, dear = np.arange(COUNT), StepCost.linear(fixed=1e-3, per_row=1e-3)

    def plans(running: list[int]) -> int:
        made = 0
        for count in running:
            observe_heads(planner, table, drafts=1)
            planner.record_step(step)
            before = planner._pace.age
            planner.plan(slots[:count], dear, 1 << 20)
            made += planner._pace.age < before
        return made

    plans([COUNT] * 2000)
    burst = [COUNT] * 20 + [COUNT // 2] * 4 + [COUNT // 4] * 4
    assert plans(burst * 100) * plan < 0.044 * len(burst) * 100 * step
    assert plans([COUNT] * 2000) * plan > 0.005 * 2000 * step


def test_what_comes_second_is_timed_ever_more_seldom_however_few_rows_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few sequences do not double the rows of a forward: they were timed in every plan."""
    planner, table = planned()
    slots, dear, timed = np.arange(COUNT), StepCost.linear(fixed=1e-3, per_row=1e-3), 0
    for _ in range(3000):
        observe_heads(planner, table)
        planner.wants_forward()
        if planner.plan(slots, dear, 1 << 20):
            timed += planner._timing
    assert 3 <= timed <= 6, "behind 128, 256, 512, 1024 and 2048 forwards"


@pytest.mark.parametrize(("before", "goes_on"), [(1, True), (COUNT, False)])
def test_a_visit_outlives_a_sequence_where_one_runs_at_a_time(before: int, goes_on: bool) -> None:
    """Outputs of 30 tokens end sooner than a visit: none was ever learned from, and another began soon."""
    planner, _ = planned(running=before)
    planner._race.follow(before, 0.02, False)
    planner._race.begin(before)
    assert planner.admit(np.array([0]), 1) == goes_on, "with one left of many, a job ended in the visit"


def probing(
    cost: StepCost, right: int = 0, source: DraftSource = DraftSource.MASK, plan: float = 0.0
) -> tuple[int, list[int], WindowPlanner]:
    """Probes, how many sequences each had, and the planner, of 4,000 forwards whose probed drafts bring so much.

    A plan takes ``plan`` seconds.
    """
    table, slots, now = SlotTable(COUNT, WIDE), np.arange(COUNT), itertools.count()
    table.adaptive[:], table.widest[:], table.limit[:], table.rows[:] = True, WIDE, 10**6, 1
    tuning = PlannerTuning(visit_share=0.0, rival_within=9.0)
    planner = WindowPlanner(table, WIDE, 1 << 20, tuning, clock=lambda: plan * next(now))  # asked for twice
    planner._acceptance.by_kind = lambda slots_S: np.zeros((2, len(slots_S), WIDE))  # type: ignore[method-assign]
    planner.admit(slots, COUNT)
    one, empty, found = np.ones(COUNT, np.int64), np.zeros((COUNT, 0)), []
    for _ in range(4000):
        planner.plan(slots, cost, 1 << 20)
        if planner._pace.age == 0 and len(planner._probes.slots):
            found.append(len(planner._probes.slots))
        agreed, drafts = right * (table.masks > 0), table.masks.copy()
        outcome = StepOutcome(
            count_D=one + agreed, next_rows_D=one, context_D=one, drafts_D=drafts, agreed_D=agreed, offered_D=drafts,
            valid_D=one > 0, next_valid_D=one > 0, token_DC=empty.astype(np.int64), early_DC=empty.astype(np.bool_),
            entropy_DC=empty.astype(np.float32), logprob_DC=empty.astype(np.float32),
        )  # fmt: skip
        planner.observe(
            slots, one + drafts, outcome, one + agreed, one < 0, 0, np.full((COUNT, 2 * WIDE), source, np.int8)
        )
    return len(found), found, planner


def test_probes_take_their_share_of_the_time_whatever_rows_cost() -> None:
    """By rows they were as rare where rows cost nothing: one sequence of a GPU was probed once in 6,400 forwards."""
    (free, _, _), (dear, _, _) = (
        probing(StepCost.linear(fixed=1e-3, per_row=row, floor_rows=floor)) for row, floor in ((1e-7, 8), (1e-3, 1))
    )
    assert free > 3 * dear > 0


def test_probes_that_take_dear_plans_are_rarer() -> None:
    """Beside small forwards the plans that begin and end one took longer than the probe."""
    cost = StepCost.linear(fixed=1e-3, per_row=1e-5)
    (cheap, _, _), (dear, _, _) = (probing(cost, plan=plan) for plan in (0.0, 1e-3))
    assert 0.6 * cheap > dear > 0


def test_more_sequences_are_probed_together_where_that_costs_as_much_as_one() -> None:
    step = StepCost(rows=(COUNT, COUNT + 1, 64, 65), seconds=(1e-3, 2e-3, 2e-3, 9e-3))  # all beyond have two tiles
    _, together, _ = probing(step)
    assert set(together) == {4}, "of 8 rows each, behind which a third tile begins"
    _, one_each, _ = probing(StepCost.linear(fixed=1e-6, per_row=1e-3))
    assert set(one_each) == {1}


def test_what_masks_of_probes_bring_pays_for_the_next() -> None:
    cheap = StepCost.linear(fixed=1e-3, per_row=1e-6, floor_rows=8)
    found = {
        source: [probing(cheap, right, source)[0] for right in (0, 3)]
        for source in (DraftSource.MASK, DraftSource.HISTORY)
    }
    nothing, much = found[DraftSource.MASK]
    assert much > 3 * nothing
    assert found[DraftSource.HISTORY][1] == nothing, "of other sources it says nothing of masks"


@pytest.mark.parametrize(("most_rows", "spare"), [(200, 1 << 20), (1 << 20, 40), (COUNT + 7, 1 << 20)])
def test_probes_stay_within_the_row_budget_and_the_free_pages(most_rows: int, spare: int) -> None:
    """Sequences that found no room in forwards full of probes waited for as long as these lasted."""
    flat = StepCost.linear(fixed=1e-3, per_row=1e-9, floor_rows=8)
    count = 8 * COUNT
    table, slots = SlotTable(count, WIDE), np.arange(count)
    table.adaptive[:], table.widest[:], table.limit[:], table.rows[:] = True, WIDE, 10**6, 1
    planner = WindowPlanner(table, WIDE, max(most_rows, count), PlannerTuning(visit_share=0.0, rival_within=9.0))
    planner._acceptance.by_kind = lambda slots_S: np.zeros((2, len(slots_S), WIDE))  # type: ignore[method-assign]
    planner.admit(slots, count)
    probed = 0
    for _ in range(600):
        planner._pace.age += 1
        planner.plan(slots, flat, spare)
        rows = int((1 + 2 * table.masks).sum())
        probed += len(planner._probes.slots)
        assert rows <= min(max(most_rows, count), count + spare)
    assert (probed > 0) == (min(max(most_rows, count), count + spare) >= count + 8)


@pytest.mark.parametrize("ended", [1, 8, 24])
def test_a_job_of_long_outputs_after_one_of_short_ones_gets_the_windows_of_a_new_engine(ended: int) -> None:
    fresh, after = (WindowPlanner(table_of(COUNT), WIDE, 1 << 20, PlannerTuning(probe_share=0.0)) for _ in range(2))
    for planner in (after, fresh):
        table = planner._table
        if planner is after:
            table.generated[:] = ended
            for _ in range(40):
                observe_heads(planner, table, ends=True)
        table.generated[:] = 2 * ended + 1
        planner.admit(np.arange(COUNT), COUNT)
        planner.plan(np.arange(COUNT), CHEAP, 1 << 20)
    np.testing.assert_array_equal(after._table.masks, fresh._table.masks)
    assert fresh._table.masks.all()


JUMPS = StepCost(
    rows=(8, 64, 72, 128, 136, 256, 264, 512), seconds=(3.3e-3, 3.4e-3, 4.1e-3, 4.1e-3, 5.7e-3, 5.8e-3, 8.5e-3, 8.9e-3),
    quantum=8,
)  # fmt: skip
"""A model of 8B parameters in int8 on an H200: tiles of products have 64 or 128 rows."""


@pytest.mark.parametrize(("overlap", "seconds"), [(True, 3.4e-3), (False, 3.75e-3)])
def test_a_forward_that_ends_before_a_jump_costs_half_of_it_only_where_rows_vary(overlap: bool, seconds: float) -> None:
    table, slots = table_of(64), np.arange(64)
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0), overlap=overlap)
    planner._acceptance.by_kind = lambda slots_S: np.zeros((2, len(slots_S), WIDE))  # type: ignore[method-assign]
    planner.admit(slots, 64)
    planner.plan(slots, JUMPS, 1 << 20)
    assert not table.masks.any()
    assert planner.seconds_of(64.0) == pytest.approx(seconds)


@pytest.mark.parametrize("hazard", [0.6, 0.75, 0.85, 0.93])
def test_windows_of_overlapping_forwards_end_before_a_jump_of_the_cost(hazard: float) -> None:
    table, slots = SlotTable(COUNT, 2 * WIDE), np.arange(COUNT)
    table.adaptive[:], table.widest[:], table.limit[:], table.masks[:] = True, WIDE, 10**6, 20
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0), overlap=True)
    right_W = np.full(WIDE, hazard).cumprod()
    planner._acceptance.by_kind = lambda slots_S: np.tile(right_W, (2, len(slots_S), 1))  # type: ignore[method-assign]
    planner.admit(slots, COUNT)
    planner.plan(slots, JUMPS, 1 << 20)
    bound = int((1 + table.masks + np.maximum(table.keep_valid, table.keep_stale)).sum())
    assert min(edge - bound for edge in (64, 128, 256, 512) if edge >= bound) < 16, "more would have cost nothing"


def test_probes_that_change_nothing_become_rarer() -> None:
    def probed(patience: int) -> float:
        tuning = PlannerTuning(most_probe_patience=patience, visit_share=0.0, rival_within=9.0)
        return float(windows(6000, lambda _: 0.0, tuning=tuning, renew=10**6)[1000:].mean())

    assert 0 < probed(4) < 0.5 * probed(1)


def test_where_some_get_masks_the_others_are_probed_as_often_as_at_first() -> None:
    planner, table = planned()
    planner._probes.patience, planner._learned = 4, True
    for _ in range(200):
        observe_heads(planner, table)
        planner.plan(np.arange(COUNT), CHEAP, 1 << 20)
    assert table.masks.any()
    assert planner._probes.patience == 1


@pytest.mark.parametrize("unread_row", [0.25, 1.0])
def test_rows_that_choose_no_token_cost_their_share(unread_row: float) -> None:
    planner, table = planned(unread_row)
    cost = StepCost.linear(fixed=0.0, per_row=1e-3)
    for _ in range(20):
        planner.record_forward(100, 0, 1, 1e-3 * (20 + unread_row * 80), cost, unread=80)
    for rows in (20, 100):
        assert planner._correction.corrected(cost)(np.array([rows]), 0, 1)[0] == pytest.approx(1e-3 * rows, rel=0.1)
    for _ in range(3000):
        observe_heads(planner, table, prefill_rows=16)
    assert planner._prefill_rows / planner._commits == pytest.approx(16 * unread_row / COUNT, rel=0.2)
