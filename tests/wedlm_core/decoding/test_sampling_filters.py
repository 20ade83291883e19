"""Filtered rows among others: chosen as the oracle says, and the others as if they were alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.oracle import choose_token
from wedlm_core.decoding.filters import FILTERS, Filter
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.types import SamplingParams


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
    found = choose_cpu(logits_RV, rows, mask_token_id=3, vocab_limit=vocab)
    for row in range(count):
        params = SamplingParams(temperature=0.8, **({one.field: one.example} if uses_R[row] else {}))
        assert int(found.token_R[row]) == choose_token(logits_RV[row], params, row, row)
