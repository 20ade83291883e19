"""The allotment finds the windows of highest expected rate; survival estimates follow what is observed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.engine.allotment import Load, allot, expected_rate, window_rows
from wedlm_core.engine.step_cost import CostSample, StepCost, fit, monotone
from wedlm_core.engine.survival import Survival

H200 = StepCost.linear(fixed=3.2e-3, per_row=19e-6, per_kv=31e-9, floor_rows=168)


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Load]:
    count, width = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    hazards = [[draw(st.floats(0.0, 1.0)) for _ in range(width)] for _ in range(count)]
    widest = np.array([draw(st.integers(0, width)) for _ in range(count)])
    cost = StepCost.linear(fixed=draw(st.floats(0.1, 20.0)), per_row=draw(st.floats(0.01, 5.0)))
    load = Load(cost=cost, other_rows=draw(st.integers(0, 20)))
    return np.cumprod(np.array(hazards), axis=1), widest, load


@given(small_cases())
def test_the_allotment_equals_brute_force_over_all_windows(case: tuple[np.ndarray, np.ndarray, Load]) -> None:
    survival, widest, load = case
    every = itertools.product(*(range(w + 1) for w in widest))
    best = max(expected_rate(survival, np.array(masks), load) for masks in every)
    got = allot(survival, widest, load)
    assert got.rate == pytest.approx(best, rel=1e-9)
    assert expected_rate(survival, got.masks_S, load) == pytest.approx(got.rate, rel=1e-9)
    assert (got.masks_S <= widest).all()


@given(small_cases(), st.integers(3, 30))
def test_the_row_budget_is_kept_whatever_pays(case: tuple[np.ndarray, np.ndarray, Load], most: int) -> None:
    survival, widest, load = case
    bounded = Load(cost=load.cost, most_rows=most)
    rows = window_rows(allot(survival, widest, bounded).masks_S).sum()
    assert rows <= max(most, len(widest))


def test_rows_that_are_free_are_spent_and_rows_that_are_dear_are_not() -> None:
    survival = np.cumprod(np.full((1, 32), 0.9), axis=1)
    alone = allot(survival, np.array([32]), Load(cost=H200, kv_tokens=1024))
    crowd = allot(np.repeat(survival, 512, axis=0), np.full(512, 32), Load(cost=H200, kv_tokens=512 * 256))
    assert alone.masks_S[0] >= 16
    assert crowd.masks_S.max() == 0
    assert alone.row_price < crowd.row_price


def test_long_contexts_make_rows_cheap_again() -> None:
    survival = np.repeat(np.cumprod(np.full((1, 32), 0.9), axis=1), 256, axis=0)
    short = allot(survival, np.full(256, 32), Load(cost=H200, kv_tokens=256 * 256))
    long = allot(survival, np.full(256, 32), Load(cost=H200, kv_tokens=256 * 8192))
    assert long.masks_S.sum() > short.masks_S.sum()


def test_masks_go_to_the_sequences_whose_drafts_survive() -> None:
    hazards = np.array([[0.3], [0.95]]).repeat(32, axis=1)
    survival = np.cumprod(hazards, axis=1).repeat(32, axis=0)
    masks = allot(survival, np.full(64, 32), Load(cost=H200, kv_tokens=64 * 4096)).masks_S
    assert masks[32:].min() > masks[:32].max()


def test_windows_change_only_for_a_real_gain() -> None:
    survival = np.cumprod(np.full((8, 32), 0.9), axis=1)
    load = Load(cost=H200, kv_tokens=8 * 1024)
    best = allot(survival, np.full(8, 32), load)
    near = best.masks_S + np.array([1, 0, 0, 0, 0, 0, 0, 0])
    assert (allot(survival, np.full(8, 32), load, near).masks_S == near).all()
    assert (allot(survival, np.full(8, 32), load, np.zeros(8, dtype=np.int64)).masks_S == best.masks_S).all()


def test_survival_learns_hazards_from_censored_observations() -> None:
    survival, slots = Survival(4, 16), np.arange(4)
    rng = np.random.default_rng(0)
    hazard = np.array([0.5, 0.8, 0.95, 1.0])
    for _ in range(400):
        run = np.cumprod(rng.random((4, 16)) < hazard[:, None], axis=1).sum(axis=1)
        survival.observe(slots, np.ones(4, dtype=bool), np.full(4, 8), np.minimum(run, 8))
    got = survival.by_kind(slots)[1]
    assert (np.diff(got, axis=1) <= 1e-12).all()
    for s in range(4):
        assert got[s, 0] == pytest.approx(hazard[s], abs=0.2)
    assert (np.diff(got[:, 7]) > 0).all()  # sequences are told apart


def test_a_new_sequence_starts_from_the_jobs_history() -> None:
    survival = Survival(2, 8)
    one = np.array([0])
    for _ in range(200):
        survival.observe(one, np.array([True]), np.array([8]), np.array([0]))
    assert survival.by_kind(np.array([1]))[1, 0, 0] < 0.1
    survival.clear(0)
    assert survival.by_kind(one)[1, 0, 0] < 0.1


def test_broken_and_intact_drafts_are_told_apart() -> None:
    survival, one = Survival(1, 8), np.array([0])
    for _ in range(100):
        survival.observe(one, np.array([True]), np.array([8]), np.array([8]))
        survival.observe(one, np.array([False]), np.array([8]), np.array([0]))
    broken, intact = survival.by_kind(one)
    assert broken[0, 0] < 0.1 < 0.9 < intact[0, 7]
    assert survival.intact_rate(one)[0] == pytest.approx(0.5, abs=0.1)


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
