"""The allocation finds the windows of highest expected rate; brute force over all windows is its oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testing.engine import planning_oracle
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.allocation import Allocation, _by_rows, _hull_density, allocate
from wedlm_core.engine.windows.long_run import LongRun, long_run
from wedlm_core.engine.windows.output_lengths import OutputLengths
from wedlm_core.engine.windows.step_time import Load
from wedlm_core.engine.windows.tuning import PlannerTuning

H200 = StepCost.linear(fixed=3.2e-3, per_row=19e-6, per_kv=31e-9, floor_rows=168)
WIDE = 32
EXACT = PlannerTuning(near_optimal=1.0, alone_within=1.0)


def steady(hazards: np.ndarray, agree: float = 1.0) -> LongRun:
    """Long-run tables of sequences with the same hazard at each offset, ``[S, W]``."""
    acceptance = np.cumprod(hazards, axis=1)
    return long_run(acceptance, acceptance * 0.5, np.full((2, len(hazards)), agree), 0.0)


def alike(hazard: float, count: int) -> LongRun:
    return steady(np.full((count, WIDE), hazard))


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[LongRun, np.ndarray, StepCost, int]:
    count, width = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    hazards = np.array([[draw(st.floats(0.0, 1.0)) for _ in range(width)] for _ in range(count)])
    run = steady(hazards, draw(st.floats(0.0, 1.0)))
    widest = np.array([draw(st.integers(0, width)) for _ in range(count)])
    cost = StepCost.linear(fixed=draw(st.floats(0.1, 20.0)), per_row=draw(st.floats(0.01, 5.0)))
    return run, widest, cost, draw(st.integers(0, 20))


def expected_rate(run: LongRun, masks_S: np.ndarray, load: Load) -> float:
    """Expected commits per second of these windows."""
    own_S = np.arange(len(masks_S))
    rows = np.array([load.other_rows + run.rows_SW[own_S, masks_S].sum()])
    return float(run.commits_SW[own_S, masks_S].sum() / load.seconds(rows, len(masks_S))[0])


def brute_force(run: LongRun, widest: np.ndarray, load: Load) -> float:
    every = itertools.product(*(range(w + 1) for w in widest))
    return max(expected_rate(run, np.array(masks), load) for masks in every)


def exact(run: LongRun, widest: np.ndarray, load: Load) -> Allocation:
    return allocate(run, widest, load, tuning=EXACT)


@settings(deadline=None)
@given(small_cases())
def test_where_each_row_costs_the_same_the_allocation_equals_brute_force(
    case: tuple[LongRun, np.ndarray, StepCost, int],
) -> None:
    run, widest, cost, other = case
    straight = StepCost(rows=(0, 1024), seconds=(cost.seconds[0], cost.seconds[1]))  # a line, no free rows
    load = Load(cost=straight, other_rows=other)
    got, best = exact(run, widest, load), brute_force(run, widest, load)
    assert got.rate == pytest.approx(best, rel=1e-9)
    assert expected_rate(run, got.masks_S, load) == pytest.approx(got.rate, rel=1e-9)
    assert (got.masks_S <= widest).all()


@settings(deadline=None)
@given(small_cases())
def test_the_cheapest_near_optimal_windows_lose_a_thousandth_at_most(
    case: tuple[LongRun, np.ndarray, StepCost, int],
) -> None:
    run, widest, cost, other = case
    load = Load(cost=cost, other_rows=other)
    best = exact(run, widest, load)
    near = allocate(run, widest, load, tuning=PlannerTuning(alone_within=1.0))
    assert 0.999 * (1 - 1e-9) * best.rate <= near.rate <= best.rate
    assert near.masks_S.sum() <= best.masks_S.sum()


@settings(deadline=None)
@given(small_cases())
def test_no_masks_are_forwarded_where_they_promise_four_percent_at_most(
    case: tuple[LongRun, np.ndarray, StepCost, int],
) -> None:
    run, widest, cost, other = case
    load = Load(cost=cost, other_rows=other)
    best, found = exact(run, widest, load), allocate(run, widest, load)
    alone = expected_rate(run, np.zeros_like(widest), load)
    if alone >= 0.9601 * best.rate:
        assert not found.masks_S.any()
    if alone <= 0.9599 * best.rate:
        assert found.masks_S.any()
        assert found.rate >= 0.998 * best.rate


@settings(deadline=None)
@given(st.lists(st.floats(0.3, 0.99), min_size=3, max_size=3), st.integers(16, 60), st.floats(0.01, 0.1))
def test_with_free_rows_three_sequences_come_within_a_tenth_of_brute_force(
    hazards: list[float], free: int, slope: float
) -> None:
    """One price for all leaves a few free rows over, and few sequences have no better use for them."""
    run = steady(np.repeat(np.array(hazards)[:, None], 6, axis=1))
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    assert exact(run, np.full(3, 6), load).rate >= 0.9 * brute_force(run, np.full(3, 6), load)


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.integers(1, 100), st.floats(0.001, 1.0))
def test_alone_it_equals_brute_force_whatever_the_cost(hazard: float, free: int, slope: float) -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    run = alike(hazard, 1)
    assert exact(run, np.array([WIDE]), load).rate == pytest.approx(brute_force(run, np.array([WIDE]), load))


@settings(deadline=None)
@given(small_cases(), st.integers(3, 30))
def test_the_row_budget_is_kept_whatever_pays(case: tuple[LongRun, np.ndarray, StepCost, int], most: int) -> None:
    run, widest, cost, _ = case
    masks = allocate(run, widest, Load(cost=cost, most_rows=most)).masks_S
    rows = run.rows_SW[np.arange(len(masks)), masks].sum()
    assert rows <= max(most, len(widest)) + 1e-9


@settings(deadline=None)
@given(small_cases())
def test_windows_are_ordered_and_hulls_are_found_as_in_arrays(case: tuple[LongRun, np.ndarray, StepCost, int]) -> None:
    run, widest, _, _ = case
    found, wanted = _by_rows(run, widest), planning_oracle.windows_by_rows(run, widest)
    for name in ("masks_SW", "rows_SW", "commits_SW"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    np.testing.assert_array_equal(
        _hull_density(found.rows_SW, found.commits_SW), planning_oracle.hull_density(wanted.rows_SW, wanted.commits_SW)
    )


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


def test_a_window_past_the_point_where_drafts_break_costs_more_than_its_rows() -> None:
    hazards = np.full((1, WIDE), 1.0)
    hazards[0, 7:] = 0.3  # phrases of eight tokens
    load = Load(cost=StepCost.linear(fixed=2e-3, per_row=1e-6))  # rows are nearly free
    assert allocate(steady(hazards), np.array([WIDE]), load).masks_S[0] == 8


@settings(deadline=None)
@given(small_cases(), st.floats(0.1, 4.0), st.floats(1.0, 200.0))
def test_prefill_changes_no_window_where_each_row_costs_the_same(
    case: tuple[LongRun, np.ndarray, StepCost, int], prefill: float, burst: float
) -> None:
    """It takes as long in whatever forward it is: what a draft has to bring does not depend on it."""
    run, widest, _, other = case
    cost = StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=1)
    plain = exact(run, widest, Load(cost=cost, other_rows=other))
    laden = exact(run, widest, Load(cost=cost, other_rows=other, prefill_rows=prefill, burst_rows=burst))
    assert 1 / laden.rate == pytest.approx(1 / plain.rate + 0.01 * prefill, rel=1e-6)
    assert laden.row_price == pytest.approx(plain.row_price, rel=1e-6)
    assert laden.seconds_per_commit == pytest.approx(1 / plain.rate, rel=1e-6)


def test_prefill_that_finds_free_rows_is_cheaper_beside_narrow_windows() -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=200), prefill_rows=2.0, burst_rows=100.0)
    beside = load.prefill_seconds(np.array([16.0, 180.0, 400.0]), np.full(3, 50.0), 16)
    assert beside[0] < 0.01 < beside[1] < beside[2] - 0.1


def test_a_mask_is_not_paid_for_what_a_grammar_forces_for_nothing() -> None:
    load = Load(cost=StepCost.linear(fixed=4.0, per_row=0.1))
    run, widest = alike(1.0, 4), np.full(4, WIDE)
    assert allocate(run, widest, load).masks_S.min() > 0
    laden = Load(cost=StepCost.linear(fixed=1.0, per_row=0.1))
    assert allocate(run, widest, laden).masks_S.min() > 0
    assert allocate(planning_oracle.with_forced(run, np.full(4, 8.0)), widest, laden).masks_S.max() == 0


@given(st.floats(0.3, 0.99), st.integers(2, 40), st.floats(1e-4, 0.05), st.integers(1, 200))
@example(0.875, 34, 0.0078125, 35)  # the next mask of all pays exactly nothing
@example(0.984375, 12, 0.03125, 16)  # each of the first six masks is worth the same, and rows run out at the fourth
def test_a_sequence_that_is_not_there_costs_nothing_and_gets_what_its_likes_get(
    hazard: float, count: int, slope: float, free: int
) -> None:
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=slope, floor_rows=free))
    running = allocate(alike(hazard, count), np.full(count, WIDE), load)
    weights = np.append(np.ones(count), 0.0)
    got = allocate(alike(hazard, count + 1), np.full(count + 1, WIDE), load, weights)
    assert got.rate == pytest.approx(running.rate)
    assert (got.masks_S[:-1] == running.masks_S).all()
    # More where they are worth the same: rows run out for those that are there only.
    one = alike(hazard, 1)
    worth_W = _hull_density(one.rows_SW, one.commits_SW)[0]
    most = running.masks_S.max()
    alike_ones = int((worth_W >= 0.999 * worth_W[max(0, most - 1)]).sum())
    assert running.masks_S.min() <= got.masks_S[-1] <= max(most + 1, alike_ones)


@given(st.floats(0.9, 1.0), st.integers(1, 40), st.integers(12, 30))
def test_where_one_window_alone_pays_a_new_sequence_gets_it_too(hazard: float, count: int, length: int) -> None:
    """Outputs of one length fit a window or do not, so windows between none and that one bring little."""
    outputs, load = OutputLengths(tokens=float(length), spread=0.0), Load(cost=StepCost.linear(fixed=1.0, per_row=1e-4))
    better, worse = (steady(np.full((count, WIDE), one)) for one in (hazard, hazard * 0.998))
    both = LongRun(**{
        name: np.concatenate([getattr(better, name), getattr(worse, name)[:1]]) for name in vars(better)
    })  # fmt: skip
    run = both.with_outputs(outputs)
    got = allocate(run, np.full(count + 1, WIDE), load, np.append(np.ones(count), 0.0))
    *others, own = got.masks_S.tolist()
    assert max(others) > 0
    worth_W = run.commits_SW[-1] - got.row_price * run.rows_SW[-1]
    assert worth_W[own] >= 0.99 * worth_W[max(others)]


def chain(
    valid: np.ndarray, stale: np.ndarray, agree: tuple[float, float], masks: int, kept: int
) -> tuple[float, float]:
    """Commits and rows per forward of the two-state chain, by iterating it: the oracle of ``long_run``."""
    right, drafts = (valid, masks - 1), (stale, kept)
    (commits, rows, stay), (few, taken, recover) = (
        (1 + s[:d].sum(), 1.0 + d + masks, s[d - 1] if d else 1.0) for s, d in (right, drafts)
    )
    state = 1.0
    for _ in range(4000):  # where all recover at once and none stay it swings for long
        state = state * stay * agree[1] + (1 - state) * recover * agree[0]
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
    run = long_run(right[None], wrong[None], agree, price)
    for masks in (1, 3, 8):
        every = [
            chain(right, wrong, (agree_stale, agree_valid), masks, k)
            for k in {min(masks, k) if masks > 1 else 0 for k in (0, 1, 2, 4, 8)}
        ]
        best = max(commits - price * rows for commits, rows in every)
        found = chain(right, wrong, (agree_stale, agree_valid), masks, int(run.kept_SW[0, masks]))
        assert found == pytest.approx((run.commits_SW[0, masks], run.rows_SW[0, masks]), rel=1e-6)
        assert found[0] - price * found[1] == pytest.approx(best, abs=1e-6)


def test_what_comes_second_and_may_last_are_masks_for_nearly_all_who_would_have_them_first() -> None:
    """Few sequences double the rows at the best rate where rows are dear, but they end, and new ones have none."""
    load = Load(cost=StepCost.linear(fixed=1.0, per_row=0.2))
    easy, hard = np.full((8, WIDE), 0.9), np.full((4, WIDE), 0.2)
    hazards, weight = np.concatenate((easy, hard, easy[:1])), np.append(np.ones(12), 0.0)
    found = allocate(steady(hazards), np.full(13, WIDE), load, weight)
    assert found.has_masks is False
    rival, lasting = found.rival, found.lasting_rival
    assert rival is not None
    assert lasting is not None
    assert (lasting.masks_S[:8] > 0).sum() >= 7
    assert lasting.masks_S[12] == np.median(lasting.masks_S[:12])
    assert rival.rate >= lasting.rate
    assert found.masks_over_none == pytest.approx(np.log(lasting.rate / found.rate))


@pytest.mark.parametrize(("easy", "has_masks"), [(1, None), (2, None), (6, True), (12, True)])
def test_windows_of_few_sequences_tell_of_masks_where_they_add_many_rows(easy: int, has_masks: bool | None) -> None:
    """A quarter of 64 sequences had windows of twice the rows, but not a mask each: they were never compared."""
    hazards = np.full((24, WIDE), 0.05)
    hazards[:easy] = 0.9
    found = allocate(steady(hazards), np.full(24, 2), Load(cost=StepCost.linear(fixed=9.0, per_row=0.05)), tuning=EXACT)
    assert (found.masks_S > 0).sum() == easy
    assert found.more == pytest.approx(easy / 8, rel=0.2)
    assert found.has_masks is has_masks
    assert (found.masks_over_none is not None) is bool(has_masks)


@pytest.mark.parametrize(("bias", "has_masks"), [(-1.0, False), (0.0, True), (1.0, True)])
def test_a_bias_counts_for_masks_and_not_for_none(bias: float, has_masks: bool) -> None:
    load = Load(cost=StepCost.linear(fixed=8.0, per_row=0.2))
    plain, found = (allocate(alike(0.8, 8), np.full(8, WIDE), load, bias=by) for by in (0.0, bias))
    assert plain.has_masks is True
    assert found.has_masks is has_masks
    assert plain.masks_over_none is not None
    assert found.masks_over_none is not None
    assert found.masks_over_none == pytest.approx(plain.masks_over_none + bias, abs=0.05)


@pytest.mark.parametrize("spared", [0.999, 1.0, 1.5])
def test_no_forward_is_free_however_much_of_the_host_one_without_masks_spares(spared: float) -> None:
    """Times that are measured apart may say so; a rate without end, or below none, would be compared with others."""
    load = Load(cost=StepCost.linear(fixed=1e-3, per_row=0.0), host_seconds=1e-3, spared_alone=spared * 2e-3)
    found = allocate(alike(0.9, 4), np.full(4, WIDE), load, tuning=EXACT)
    assert 0 < found.rate < 1e9
    assert not found.masks_S.any()
