"""How likely drafts are to be accepted: learned from censored observations, by sequence and over the job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine import acceptance_oracle, planning_oracle
from wedlm_core.engine.drafting.acceptance import Acceptance
from wedlm_core.engine.drafting.constants import CONSTANTS


def test_acceptance_learns_hazards_from_censored_observations() -> None:
    acceptance, slots = Acceptance(4, 16), np.arange(4)
    rng = np.random.default_rng(0)
    hazard = np.array([0.5, 0.8, 0.95, 1.0])
    yes = np.ones(4, dtype=bool)
    for _ in range(400):
        run = np.cumprod(rng.random((4, 16)) < hazard[:, None], axis=1).sum(axis=1)
        acceptance.observe(slots, yes, np.full(4, 8), np.minimum(run, 8), yes)
    got = acceptance.by_kind(slots)[1]
    assert (np.diff(got, axis=1) <= 1e-12).all()
    for s in range(4):
        assert got[s, 0] == pytest.approx(hazard[s], abs=0.25)
    assert (np.diff(got[:, 7]) > 0).all()  # sequences are told apart


@given(seed=st.integers(0, 2**31), forwards=st.integers(1, 5))
@settings(deadline=None)  # the first example compiles
def test_counts_are_those_of_arrays(seed: int, forwards: int) -> None:
    rng, slots, wide = np.random.default_rng(seed), 5, 4
    acceptance = Acceptance(slots, wide)
    for slot in range(slots):
        acceptance.clear(np.array([slot]), int(rng.integers(3)))
    oracle = acceptance_oracle.Counts(
        counts=acceptance._counts.copy(), job=acceptance._job.copy(), family_S=acceptance._family_S,
        sequence_kept=CONSTANTS.counts_kept, job_kept=CONSTANTS.counts_kept,
    )  # fmt: skip
    for _ in range(forwards):
        slots_D = rng.permutation(slots)[: int(rng.integers(0, slots + 1))]
        count, places = len(slots_D), int(rng.integers(1, 7))
        valid_D, next_valid_D, own_D = rng.integers(0, 2, (3, count)).astype(bool)
        offered_D, agreed_D = rng.integers(0, 7, (2, count))
        source_DC = rng.integers(0, 3, (count, max(places, 6))).astype(np.int8)
        acceptance.observe(slots_D, valid_D, offered_D, agreed_D, next_valid_D, source_DC, own_D)
        own = (part[own_D] for part in (slots_D, valid_D, offered_D, agreed_D, next_valid_D, source_DC))
        oracle.observe(*own)
        np.testing.assert_array_equal(acceptance._counts, oracle.counts)
        np.testing.assert_array_equal(acceptance._job, oracle.job)
        every = np.arange(slots)
        np.testing.assert_allclose(acceptance.by_kind(every), planning_oracle.by_kind(acceptance, every), rtol=1e-12)


def test_a_new_sequence_starts_from_the_jobs_history() -> None:
    acceptance = Acceptance(2, 8)
    one, yes = np.array([0]), np.array([True])
    for _ in range(200):
        acceptance.observe(one, yes, np.array([8]), np.array([0]), ~yes)
    assert acceptance.by_kind(np.array([1]))[1, 0, 0] < 0.1
    acceptance.clear(np.array([0]))
    assert acceptance.by_kind(one)[1, 0, 0] < 0.1


def test_stale_and_valid_drafts_are_told_apart() -> None:
    acceptance, one, yes = Acceptance(1, 8), np.array([0]), np.array([True])
    np.testing.assert_allclose(acceptance.agreement(one), CONSTANTS.prior_hazard)
    for _ in range(100):
        acceptance.observe(one, yes, np.array([8]), np.array([8]), ~yes)
        acceptance.observe(one, ~yes, np.array([8]), np.array([0]), yes)
    stale, valid = acceptance.by_kind(one)
    assert stale[0, 0] < 0.1 < 0.9 < valid[0, 7]
    assert acceptance.agreement(one)[1, 0] < 0.1


def test_sequences_that_differ_are_told_apart_and_those_that_do_not_hardly_by_luck() -> None:
    rng, yes = np.random.default_rng(1), np.ones(1, dtype=bool)

    def spread(hazards: list[float]) -> float:
        """Between sequences, of the estimate at the fourth offset, after many others."""
        acceptance = Acceptance(1, 8)
        found = []
        for hazard in hazards:
            acceptance.clear(np.array([0]))
            for _ in range(12):
                right = int(np.cumprod(rng.random(8) < hazard).sum())
                acceptance.observe(np.array([0]), yes, np.full(1, 8), np.array([right]), yes)
            found.append(acceptance.by_kind(np.array([0]))[1, 0, 3])
        return float(np.std(found[-100:]))

    assert spread([0.6, 0.95] * 150) > 2 * spread([0.8] * 300)


def test_what_a_job_was_like_is_forgotten_in_some_hundred_forwards_at_any_batch_size() -> None:
    for count in (1, 64):
        acceptance, slots, yes = Acceptance(count + 1, 8), np.arange(count), np.ones(count, dtype=bool)
        for right in (8, 0):
            for _ in range(400):
                acceptance.observe(slots, yes, np.full(count, 8), np.full(count, right), yes)
        assert acceptance.by_kind(np.array([count]))[1, 0, 0] < 0.1


def test_stale_drafts_are_taken_for_valid_ones_until_they_show_otherwise() -> None:
    acceptance, one, new, yes = Acceptance(2, 8), np.array([0]), np.array([1]), np.ones(1, dtype=bool)
    for _ in range(300):
        acceptance.observe(one, yes, np.array([8]), np.array([8]), yes)
    stale, valid = acceptance.by_kind(new)
    np.testing.assert_allclose(stale, valid)
    for _ in range(50):
        acceptance.observe(one, ~yes, np.array([8]), np.array([0]), yes)
    stale, valid = acceptance.by_kind(new)
    assert (stale < 0.2).all()
    assert (valid > 0.9).all()


def test_sequences_of_another_decoding_tell_nothing_of_these() -> None:
    """A mixed batch: every draft of the one kind is accepted, none of the other."""
    yes = np.ones(4, dtype=bool)
    drafts, agreed = np.full(4, 8), np.array([8, 0, 8, 0])
    mixed, alone = Acceptance(6, 8), Acceptance(6, 8)
    mixed.clear(np.arange(6), np.array([0, 3, 0, 3, 0, 3]))
    for _ in range(50):
        mixed.observe(np.arange(4), yes, drafts, agreed, yes)
        alone.observe(np.array([0, 2]), yes[:2], drafts[:2], agreed[::2], yes[:2])
    fresh = mixed.by_kind(np.array([4, 5]))[1]
    assert fresh[0, 7] > 0.9
    assert fresh[1, 0] < 0.1
    np.testing.assert_array_equal(fresh[0], alone.by_kind(np.array([4]))[1, 0])
    assert (mixed.agreement(np.array([4, 5]))[1] == alone.agreement(np.array([4]))[1]).tolist() == [True, False]
