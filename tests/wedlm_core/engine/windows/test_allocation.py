"""The allocation finds the windows of highest expected rate, and the planner follows what forwards bring and take."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.engine.windows.acceptance import Acceptance
from wedlm_core.engine.windows.allocation import LongRun, allocate, expected_rate, long_run, newcomer
from wedlm_core.engine.windows.planner import WindowPlanner, corrected
from wedlm_core.engine.windows.step_time import Load

H200 = StepCost.linear(fixed=3.2e-3, per_row=19e-6, per_kv=31e-9, floor_rows=168)
WIDE = 32


def steady(hazards: np.ndarray, agree: float = 1.0, ends: float = 0.0) -> LongRun:
    """Long-run tables of sequences with the same hazard at each offset, ``[S, W]``."""
    acceptance = np.cumprod(hazards, axis=1)
    count, width = acceptance.shape
    alive = (1 - ends) ** np.arange(1, width + 1)
    return long_run(acceptance, acceptance * 0.5, np.full((2, count), agree), alive, 0.0)


def alike(hazard: float, count: int) -> LongRun:
    return steady(np.full((count, WIDE), hazard))


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[LongRun, np.ndarray, StepCost, int]:
    count, width = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    hazards = np.array([[draw(st.floats(0.0, 1.0)) for _ in range(width)] for _ in range(count)])
    run = steady(hazards, draw(st.floats(0.0, 1.0)), draw(st.floats(0.0, 0.9)))
    widest = np.array([draw(st.integers(0, width)) for _ in range(count)])
    cost = StepCost.linear(fixed=draw(st.floats(0.1, 20.0)), per_row=draw(st.floats(0.01, 5.0)))
    return run, widest, cost, draw(st.integers(0, 20))


def brute_force(run: LongRun, widest: np.ndarray, load: Load) -> float:
    every = itertools.product(*(range(w + 1) for w in widest))
    return max(expected_rate(run, np.array(masks), load) for masks in every)


@settings(deadline=None)
@given(small_cases())
def test_the_allocation_equals_brute_force_over_all_windows(case: tuple[LongRun, np.ndarray, StepCost, int]) -> None:
    run, widest, cost, other = case
    straight = StepCost(rows=(0, 1024), seconds=(cost.seconds[0], cost.seconds[1]))  # a line, no free rows
    load = Load(cost=straight, other_rows=other)
    got = allocate(run, widest, load)
    assert 0.98 * brute_force(run, widest, load) <= got.rate * (1 + 1e-9)
    assert expected_rate(run, got.masks_S, load) == pytest.approx(got.rate, rel=1e-9)
    assert (got.masks_S <= widest).all()


@settings(deadline=None)
@given(st.lists(st.floats(0.3, 0.99), min_size=3, max_size=3), st.integers(16, 60), st.floats(0.01, 0.1))
def test_with_free_rows_it_is_near_brute_force(hazards: list[float], free: int, slope: float) -> None:
    run = steady(np.repeat(np.array(hazards)[:, None], 6, axis=1))
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    # Two windows may have to change at once where a handful of rows is all there is.
    assert allocate(run, np.full(3, 6), load).rate >= 0.9 * brute_force(run, np.full(3, 6), load)


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.integers(1, 100), st.floats(0.001, 1.0))
def test_alone_it_is_brute_force_whatever_the_cost(hazard: float, free: int, slope: float) -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    run = alike(hazard, 1)
    assert allocate(run, np.array([WIDE]), load).rate == pytest.approx(brute_force(run, np.array([WIDE]), load))


@settings(deadline=None)
@given(small_cases(), st.integers(3, 30))
def test_the_row_budget_is_kept_whatever_pays(case: tuple[LongRun, np.ndarray, StepCost, int], most: int) -> None:
    run, widest, cost, _ = case
    masks = allocate(run, widest, Load(cost=cost, most_rows=most)).masks_S
    rows = run.rows_SW[np.arange(len(masks)), masks].sum()
    assert rows <= max(most, len(widest)) + 1e-9


def test_rows_that_are_free_are_spent_and_rows_that_are_dear_are_not() -> None:
    alone = allocate(alike(0.9, 1), np.array([WIDE]), Load(cost=H200, kv_tokens=1024))
    crowd = allocate(alike(0.9, 512), np.full(512, WIDE), Load(cost=H200, kv_tokens=512 * 256))
    assert alone.masks_S[0] >= 8
    assert crowd.masks_S.max() == 0
    assert alone.row_price < crowd.row_price


def test_long_contexts_make_rows_cheap_again() -> None:
    short = allocate(alike(0.9, 256), np.full(256, WIDE), Load(cost=H200, kv_tokens=256 * 256))
    long = allocate(alike(0.9, 256), np.full(256, WIDE), Load(cost=H200, kv_tokens=256 * 8192))
    assert long.masks_S.sum() > short.masks_S.sum()


def test_masks_go_to_the_sequences_whose_drafts_survive() -> None:
    run = steady(np.array([[0.3], [0.95]]).repeat(WIDE, axis=1).repeat(32, axis=0))
    masks = allocate(run, np.full(64, WIDE), Load(cost=H200, kv_tokens=64 * 4096)).masks_S
    assert masks[32:].min() > masks[:32].max()


def test_an_output_about_to_end_gets_no_wide_window() -> None:
    hazards = np.full((1, WIDE), 0.99)
    load = Load(cost=StepCost.linear(fixed=1e-3, per_row=5e-5))
    going_on = allocate(steady(hazards), np.array([WIDE]), load).masks_S[0]
    ending = allocate(steady(hazards, ends=0.3), np.array([WIDE]), load).masks_S[0]
    assert ending < going_on


def test_a_window_past_the_point_where_drafts_break_costs_more_than_its_rows() -> None:
    hazards = np.full((1, WIDE), 1.0)
    hazards[0, 7:] = 0.3  # phrases of eight tokens
    load = Load(cost=StepCost.linear(fixed=2e-3, per_row=1e-6))  # rows are nearly free
    assert allocate(steady(hazards), np.array([WIDE]), load).masks_S[0] == 8


def test_windows_change_only_for_a_real_gain() -> None:
    run, load = alike(0.9, 8), Load(cost=H200, kv_tokens=8 * 1024)
    best = allocate(run, np.full(8, WIDE), load)
    near = best.masks_S + np.array([1, 0, 0, 0, 0, 0, 0, 0])
    assert (allocate(run, np.full(8, WIDE), load, near).masks_S == near).all()
    assert (allocate(run, np.full(8, WIDE), load, np.zeros(8, dtype=np.int64)).masks_S == best.masks_S).all()


def test_prefill_goes_with_commits_and_costs_all_windows_the_same_per_commit_where_rows_cost_the_same() -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=0.01))
    run = alike(0.8, 16)
    for width in range(0, WIDE + 1, 4):
        masks = np.full(16, width)
        plain, laden = expected_rate(run, masks, load), expected_rate(run.with_prefill(3.0), masks, load)
        assert 1 / laden == pytest.approx(1 / plain + 0.01 * 3.0, rel=0.01)


def test_a_table_that_is_wrong_where_forwards_run_is_corrected_there() -> None:
    table = SlotTable(8, 65)
    planner = WindowPlanner(table, 32, 2048)
    measured = StepCost(rows=(16, 64, 256, 1024), seconds=(1.0, 1.1, 1.5, 3.0))
    for _ in range(200):
        planner.ran(64, 0, 8, 1.1, measured)
        planner.ran(1024, 0, 8, 6.0, measured)
    got = corrected(measured, planner._factor, planner._seen)
    assert got.seconds[1] == pytest.approx(1.1, rel=0.15)
    assert got.seconds[3] == pytest.approx(6.0, rel=0.15)
    assert got.seconds[0] <= got.seconds[1] <= got.seconds[2] <= got.seconds[3]
    disturbed = WindowPlanner(table, 32, 2048)
    disturbed.ran(64, 0, 8, 1000.0, measured)
    assert corrected(measured, disturbed._factor, disturbed._seen).seconds[1] < 1.6


@pytest.mark.parametrize(("emitted", "wide"), [(5, True), (1, False)])
def test_masks_that_bring_less_than_the_estimates_say_are_given_up(emitted: int, wide: bool) -> None:
    """Every draft is accepted, as the estimates say; only what becomes output differs."""
    count = 8
    table = SlotTable(count, WIDE)
    slots = np.arange(count)
    table.adaptive[:], table.widest[:], table.limit[:] = True, 4, 10**6
    planner = WindowPlanner(table, 4, 1 << 20)
    planner.admit(slots, count)
    yes, cost = np.ones(count, np.bool_), StepCost.linear(fixed=1e-3, per_row=5e-5)
    forwards: list[bool] = []
    for _ in range(400):
        planner.plan(slots, cost, 1 << 20)
        table.rows[:] = 1 + 2 * table.masks
        drafts = table.masks.copy()
        outcome = StepOutcome(
            count_D=1 + drafts, next_rows_D=table.rows, context_D=1 + drafts, drafts_D=drafts, agreed_D=drafts,
            offered_D=drafts, valid_D=yes, next_valid_D=yes, token_DC=np.zeros((count, 0), np.int64),
            early_DC=np.zeros((count, 0), np.bool_), entropy_DC=np.zeros((count, 0), np.float32),
            logprob_DC=np.zeros((count, 0), np.float32),
        )  # fmt: skip
        emit = np.minimum(1 + drafts, emitted)
        planner.observe(slots, table.rows.copy(), outcome, emit, ~yes, 0)
        forwards.append(bool((table.masks >= 2).mean() > 0.5))
    # Now and then they are tried again: that they bring nothing may have changed.
    assert (np.mean(forwards[200:]) > 0.9) if wide else (np.mean(forwards[200:]) < 0.15)


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


@settings(max_examples=50)
@given(st.floats(0.3, 0.99), st.integers(1, 40), st.floats(1e-4, 0.05), st.integers(1, 200))
def test_a_newcomer_that_is_like_the_others_gets_about_what_they_have(
    hazard: float, count: int, slope: float, free: int
) -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    run = alike(hazard, count + 1)
    masks = allocate(run.first(count), np.full(count, WIDE), load).masks_S
    rate = expected_rate(run.first(count), masks, load)
    found = newcomer(run, masks, load)
    # Rows come in lumps: one of many may have been the only one with masks. What counts is whom it replaces on average.
    after = [expected_rate(run.first(count), np.append(np.delete(masks, i), found), load) for i in range(count)]
    assert np.mean(after) >= (0.8 if count > 1 else 1.0) * rate


def chain(
    valid: np.ndarray, stale: np.ndarray, agree: tuple[float, float], masks: int, kept: int
) -> tuple[float, float]:
    """Commits and rows per forward of the two-state chain, by iterating it: the oracle of ``long_run``."""
    right, drafts = (valid, masks - 1), (stale, kept)
    (commits, rows, stay), (few, taken, mend) = (
        (1 + s[:d].sum(), 1.0 + d + masks, s[d - 1] if d else 1.0) for s, d in (right, drafts)
    )
    state = 1.0
    for _ in range(4000):  # where all mend at once and none stay it swings for long
        state = state * stay * agree[1] + (1 - state) * mend * agree[0]
    return float(state * commits + (1 - state) * few), float(state * rows + (1 - state) * taken)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.3, 0.99), st.floats(0.1, 0.99), st.floats(0.5, 0.99), st.floats(0.5, 0.99), st.floats(0.0, 0.4),
)  # fmt: skip
def test_stale_drafts_are_kept_as_pays_best_in_the_long_run(
    valid: float, stale: float, agree_stale: float, agree_valid: float, price: float
) -> None:
    right, wrong = np.full(8, valid).cumprod(), np.full(8, stale).cumprod()
    agree = np.array([[agree_stale], [agree_valid]])
    run = long_run(right[None], wrong[None], agree, np.ones(8), price)
    for masks in (1, 3, 8):
        every = [
            chain(right, wrong, (agree_stale, agree_valid), masks, k)
            for k in {min(masks, k) if masks > 1 else 0 for k in (0, 1, 2, 4, 8)}
        ]
        best = max(commits - price * rows for commits, rows in every)
        found = chain(right, wrong, (agree_stale, agree_valid), masks, int(run.kept_SW[0, masks]))
        assert found == pytest.approx((run.commits_SW[0, masks], run.rows_SW[0, masks]), rel=1e-6)
        assert found[0] - price * found[1] == pytest.approx(best, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(48, 300), st.integers(1, 16))
def test_whole_outputs_take_the_forwards_and_rows_that_their_starts_and_ends_make(tokens: int, masks: int) -> None:
    """Against an output whose drafts are all right, forward by forward."""
    done, drafts, forwards, rows = 0, 0, 0, 0
    while done < tokens:
        left = tokens - done
        kept = min(drafts, left)
        window = 0 if kept == left else masks  # the last draft is the stop token
        forwards, rows, done = forwards + 1, rows + 1 + kept + window, done + kept + 1
        drafts = max(window - 1, 0)
    acceptance = Acceptance(1, 32)
    for _ in range(600):
        acceptance.finished(tokens)
    sure = np.ones((1, 32))
    run = long_run(sure, sure, np.ones((2, 1)), acceptance.alive(), 0.0).from_the_start(1 / tokens)
    assert run.commits_SW[0, masks] == pytest.approx(tokens / forwards, rel=0.25)
    assert run.rows_SW[0, masks] / run.commits_SW[0, masks] == pytest.approx(rows / tokens, rel=0.15)


def test_a_newcomer_gets_what_most_have_where_it_hardly_matters() -> None:
    load = Load(cost=StepCost.linear(fixed=1e-6, per_row=0.01))  # rows cost all there is: masks at a half are even
    run = alike(0.6, 33)
    even = LongRun(commits_SW=run.commits_SW, rows_SW=run.commits_SW * 1.0, kept_SW=run.kept_SW)
    assert newcomer(even, np.full(32, 7), load) == 7
    assert newcomer(even, np.zeros(32, dtype=np.int64), load) == 0


def test_many_newcomers_are_not_given_what_is_best_for_one() -> None:
    """Where the batch is past the free rows one sequence is best off without masks; without any they lie idle."""
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=256))
    run, masks = alike(0.8, 33), np.full(32, 8)
    assert newcomer(run, masks, load) == 0
    rates = [expected_rate(run.first(32), np.full(32, w), load) for w in range(WIDE + 1)]
    assert rates[newcomer(run, masks, load, arrivals=32)] == max(rates)


def test_where_steps_with_masks_cost_the_host_more_that_counts_against_masks() -> None:
    run, cost = alike(0.8, 4), StepCost.linear(fixed=1.0, per_row=0.0)
    none, some = np.zeros(4, dtype=np.int64), np.array([0, 0, 0, 4])
    dear, even = (Load(cost=cost, host_seconds=0.5, plain_host_seconds=p) for p in (0.1, 0.5))
    assert expected_rate(run, none, dear) == pytest.approx(4 / 1.1)
    assert expected_rate(run, none, even) == pytest.approx(4 / 1.5)
    assert expected_rate(run, some, dear) == expected_rate(run, some, even)


def test_a_job_that_turns_hard_is_noticed_from_what_masks_bring() -> None:
    """A hundred easy forwards, then hard ones: windows come down faster than the job's past fades by itself."""

    def windows(forwards: int, hits: Callable[[int], float], *, doubts: bool = True) -> list[float]:
        rng, table, slots = np.random.default_rng(3), SlotTable(8, WIDE), np.arange(8)
        table.adaptive[:], table.widest[:], table.limit[:] = True, WIDE, 10**6
        planner, cost = WindowPlanner(table, WIDE, 1 << 20), StepCost.linear(fixed=1e-3, per_row=1e-5, floor_rows=8)
        if not doubts:
            planner._acceptance.doubt = lambda: None  # type: ignore[method-assign]
        yes, empty, found = np.ones(8, np.bool_), np.zeros((8, 0)), []
        for forward in range(forwards):
            if forward % 10 == 0:
                planner.admit(slots, 8)  # a sequence's own past is short
            planner.plan(slots, cost, 1 << 20)
            drafts = table.masks.copy()
            right = (rng.random((8, WIDE)) < hits(forward)).cumprod(axis=1).sum(axis=1)
            agreed = np.minimum(right, drafts)
            table.rows[:] = 1 + 2 * drafts
            outcome = StepOutcome(
                count_D=1 + agreed, next_rows_D=table.rows, context_D=1 + agreed, drafts_D=drafts, agreed_D=agreed,
                offered_D=drafts, valid_D=yes, next_valid_D=yes, token_DC=empty.astype(np.int64),
                early_DC=empty.astype(np.bool_), entropy_DC=empty.astype(np.float32),
                logprob_DC=empty.astype(np.float32),
            )  # fmt: skip
            planner.observe(slots, table.rows.copy(), outcome, 1 + agreed, ~yes, 0)
            found.append(float(drafts.mean()))
        return found

    easy, hard = (np.mean(windows(200, lambda _, p=p: p)[100:]) for p in (0.97, 0.5))
    turned, kept = (
        np.mean(windows(200, lambda forward: 0.97 if forward < 100 else 0.5, doubts=doubts)[110:160])
        for doubts in (True, False)
    )
    assert easy > 2 * hard
    assert turned - hard < (kept - hard) / 2
