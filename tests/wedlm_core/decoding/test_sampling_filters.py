"""Filtered rows among others: chosen as the oracle says, whether or not the host knows how many there are."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.oracle import choose_token
from wedlm_core.decoding.filters import FILTERS, Filter, filter_logits
from wedlm_core.decoding.sampling import Choice, SamplingRows, choose, with_filters
from wedlm_core.types import SamplingParams


def rows_of(top_k: list[int], special_rows: int | None) -> SamplingRows:
    count = len(top_k)
    return SamplingRows(
        temperature_R=torch.full((count,), 0.9),
        seed_R=torch.arange(count),
        position_R=torch.arange(count),
        suppress_R=torch.zeros(count, dtype=torch.bool),
        sampled=True,
        filters={"top_k": torch.tensor(top_k)},
        suppressing=False,
        special_rows=special_rows,
    )


@pytest.mark.parametrize("top_k", [[0, 2, 0, 1, 3], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 5]])
@pytest.mark.parametrize("slack", [0, 1, 40])
def test_a_bound_changes_nothing(top_k: list[int], slack: int) -> None:
    logits = torch.randn(len(top_k), 50, generator=torch.Generator().manual_seed(1))
    limits = {"mask_token_id": 3, "vocab_limit": 50}
    untouched = Choice(token_R=torch.full((5,), -7), entropy_R=torch.zeros(5), logprob_R=torch.zeros(5))
    bound = sum(k > 0 for k in top_k) + slack
    found = with_filters(untouched, logits, rows_of(top_k, bound), **limits)
    known = with_filters(untouched, logits, rows_of(top_k, None), **limits)
    oracle = choose(logits, rows_of(top_k, None), **limits)
    for field in fields(Choice):
        assert torch.equal(getattr(found, field.name), getattr(known, field.name))
    for row, k in enumerate(top_k):
        assert int(found.token_R[row]) == (int(oracle.token_R[row]) if k else -7)


@pytest.mark.parametrize("one", FILTERS, ids=lambda one: one.field)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_a_filter_applies_to_its_rows_alone_and_as_the_oracle_says(one: Filter, seed: int) -> None:
    count, vocab = 6, 40
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn(count, vocab, generator=generator) * 3
    uses_R = torch.arange(count) % 2 == 0
    value_R = torch.where(uses_R, one.example, one.off).to(one.dtype)
    rows = SamplingRows(
        temperature_R=torch.full((count,), 0.8),
        seed_R=torch.arange(count),
        position_R=torch.arange(count),
        suppress_R=torch.zeros(count, dtype=torch.bool),
        filters={one.field: value_R},
        sampled=True,
        suppressing=False,
    )
    found = choose(logits_RV, rows, mask_token_id=3, vocab_limit=vocab)
    kept_RV = filter_logits(logits_RV, rows.filters)
    assert torch.equal(kept_RV[~uses_R], logits_RV[~uses_R])
    assert bool(torch.isinf(kept_RV[uses_R]).any(dim=1).all()), "the example leaves tokens out"
    for row in range(count):
        params = SamplingParams(temperature=0.8, **({one.field: one.example} if uses_R[row] else {}))
        assert int(found.token_R[row]) == choose_token(logits_RV[row], params, row, row)
