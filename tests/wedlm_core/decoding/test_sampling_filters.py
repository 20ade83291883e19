"""Rows with top-k or top-p among rows without: the same choices whether or not the host knows how many there are."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from wedlm_core.decoding.sampling import Choice, SamplingRows, choose, with_filters


def rows_of(top_k: list[int], filtered_rows: int | None) -> SamplingRows:
    count = len(top_k)
    return SamplingRows(
        temperature_R=torch.full((count,), 0.9),
        top_k_R=torch.tensor(top_k),
        top_p_R=torch.ones(count),
        seed_R=torch.arange(count),
        position_R=torch.arange(count),
        suppress_R=torch.zeros(count, dtype=torch.bool),
        sampled=True,
        filtered_k=True,
        filtered_p=False,
        suppressing=False,
        filtered_rows=filtered_rows,
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
