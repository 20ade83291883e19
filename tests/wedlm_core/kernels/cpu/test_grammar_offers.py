"""What history offers to sequences with a grammar, and what it saves, equal operations on arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.grammar_offers_oracle import paying_drafts, saved
from wedlm_core.kernels.cpu.grammar_columns import DONE, GOES_ON, KEPT, PAYING, PLACE, REFUSED, Drafted, Proposed
from wedlm_core.kernels.cpu.grammar_offers import offer_history, saved_commits
from wedlm_core.statistics import DraftSource

SLOTS, PLACES, MASKS = 9, 6, 4


def falling(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Probabilities that fall along the last axis, some of them 0 from a place on."""
    likely = np.cumprod(rng.uniform(0.5, 1.0, shape), axis=-1)
    return likely * (np.arange(shape[-1]) < rng.integers(0, shape[-1] + 1, shape[:-1])[..., None])


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_offered_and_saved_is_as_arrays_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, SLOTS))
    decoding = count + int(rng.integers(0, 3))
    proposed = Proposed.first(rng.permutation(SLOTS)[:count], np.full(count, 9), np.full(count, 9))
    proposed.numbers_10G[[GOES_ON, PLACE]] = rng.random(count) < 0.8, rng.permutation(decoding)[:count]
    proposed.numbers_10G[KEPT] = rng.integers(0, MASKS + 2, count)
    drafted = Drafted.empty(count, PLACES)
    drafted.lead[:] = rng.integers(0, PLACES + 1, count)
    drafted.source_GL[:] = rng.integers(0, len(DraftSource), drafted.source_GL.shape)
    drafted.outcome[:] = np.where(rng.random(count) < 0.8, DONE, REFUSED)
    acceptance_DP = falling(rng, decoding, int(rng.integers(1, PLACES + 3))).astype(np.float32)
    by_masks_2SW = falling(rng, 2, SLOTS, MASKS)
    valid_D, price, least = rng.random(decoding) < 0.5, float(rng.choice([0.0, 0.2, 0.7])), 0.3
    by_masks = valid_D, by_masks_2SW, price
    expected_G = paying_drafts(proposed, acceptance_DP, *by_masks, least)
    assert offer_history(proposed.numbers_10G, acceptance_DP, *by_masks, least) == np.count_nonzero(expected_G)
    np.testing.assert_array_equal(proposed.numbers_10G[PAYING], expected_G)
    got = saved_commits(proposed.numbers_10G, drafted.numbers_4G, drafted.source_GL, acceptance_DP, *by_masks)
    np.testing.assert_allclose(got, saved(proposed, expected_G, drafted, acceptance_DP, *by_masks), atol=1e-9)
