"""Vectorised selection and sampling against plain Python, ties and edges included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.oracle import choose_token, positions_to_fill
from testing.engine.random_bits import random_allowed
from testing.engine.random_tables import SLOTS, random_tables
from testing.engine.sampling_oracle import choose
from wedlm_core.decoding.adjustments import adjustments_record
from wedlm_core.decoding.allowed_tokens import AllowedRows
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.decoding.selection import leading_run, select_fills
from wedlm_core.types import SamplingParams

# Multiples of 1/8 are exact in float32, so ties and equality with the threshold really occur.
EIGHTHS = st.integers(0, 16).map(lambda n: n / 8)
WINDOWS = st.lists(st.tuples(st.booleans(), EIGHTHS), min_size=9, max_size=9)


@given(
    rows=st.lists(st.tuples(WINDOWS, st.none() | EIGHTHS, st.sampled_from([0.0, 0.125, 0.5])), min_size=1, max_size=5)
)
@settings(deadline=None)
def test_selection_is_strict_first_on_ties_and_row_by_row(
    rows: list[tuple[list[tuple[bool, float]], float | None, float]],
) -> None:
    candidate = torch.tensor([[c for c, _ in window] for window, _, _ in rows])
    entropy = torch.tensor([[h for _, h in window] for window, _, _ in rows])
    threshold = torch.tensor([-torch.inf if t is None else t for _, t, _ in rows])
    filled = select_fills(entropy, candidate, threshold, torch.tensor([p for _, _, p in rows]))
    for row, (window, limit, penalty) in zip(filled, rows, strict=True):
        masks = [i for i, (c, _) in enumerate(window) if c]
        chosen = positions_to_fill([window[i][1] for i in masks], masks, limit, penalty) if masks else []
        assert torch.nonzero(row).flatten().tolist() == [masks[i] for i in chosen]


@given(flags=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_leading_run(flags: list[list[bool]]) -> None:
    assert leading_run(torch.tensor(flags)).tolist() == [[*row, False].index(False) for row in flags]


@pytest.mark.parametrize("chooser", [choose, choose_cpu])
def test_suppressed_ids_are_never_chosen_and_do_not_count(chooser: Any) -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0, 9.0, 9.0]]).repeat(2, 1)
    rows = SamplingRows(
        temperature_R=torch.tensor([0.0, 1.0]), seed_R=torch.zeros(2, dtype=torch.int64), position_R=torch.arange(2),
        suppress_R=torch.ones(2, dtype=torch.bool), sampled=True, suppressing=True,
    )  # fmt: skip
    choice = chooser(logits, rows, mask_token_id=0, vocab_limit=3)
    assert int(choice.token_R[0]) == 2
    assert int(choice.token_R[1]) in (1, 2)
    log_2 = torch.tensor([1.0, 2.0]).log_softmax(-1)
    torch.testing.assert_close(choice.entropy_R, -(log_2.exp() * log_2).sum().expand(2))


@given(
    st.integers(1, 40), st.integers(12, 130) | st.just(1_200), st.integers(0, 2**31), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from([0.0, 200.0]), st.sampled_from([0.01, 2.0]), st.sampled_from([0, 5]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_the_compiled_sampler_equals_the_plain_one(
    count: int, vocab: int, seed: int, suppressing: bool, restricting: bool, adjusting: bool, peak: float, heat: float,
    most: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def drawn(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (count,), generator=generator)]

    logits = torch.randn(count, vocab, generator=generator) * 4
    logits[::3] = (logits[::3] * 2).round() / 2  # which ties often
    logits[:, 1:8:6] += peak  # tokens that a bias of -100 and penalties take far down
    temperature = torch.rand(count, generator=generator).mul(heat).masked_fill_(torch.arange(count) % 2 == 0, 0.0)
    tables = random_tables(vocab, generator) if adjusting else None
    slot = torch.arange(count) % SLOTS
    suppress = torch.arange(count) % 5 == 0 if suppressing else torch.zeros(count, dtype=torch.bool)
    rows = SamplingRows(
        temperature_R=temperature,
        seed_R=torch.randint(0, 2**62, (count,), generator=generator),
        position_R=torch.arange(count) if tables is None else tables.known_S[slot],
        suppress_R=suppress,
        sampled=True,
        filters={
            "min_p": drawn(0.0, 0.2),
            "top_k": drawn(0, 0, 1, 3, 500),
            "top_p": drawn(1.0, 1.0, 0.99, 0.5, 1e-6),
        },
        adjustments_N=None if tables is None else torch.from_numpy(adjustments_record(tables).view(np.int64)),
        slot_R=slot,
        report_R=torch.arange(count) % 2,
        most=most,
        allowed=random_allowed(suppress, vocab, seed) if restricting else None,
        suppressing=suppressing,
    )
    limits = {"mask_token_id": 1, "vocab_limit": vocab - 2}
    want = choose(logits.clone(), rows, tables=tables, **limits)
    got = choose_cpu(logits.clone(), rows, **limits)
    assert torch.equal(got.token_R, want.token_R)
    torch.testing.assert_close(got.entropy_R, want.entropy_R, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.logprob_R, want.logprob_R, rtol=1e-4, atol=1e-5)
    if got.tops is not None and want.tops is not None:
        assert torch.equal(got.tops.token_RK, want.tops.token_RK)
        torch.testing.assert_close(got.tops.logprob_RK, want.tops.logprob_RK, rtol=1e-4, atol=1e-5)
    for i in range(count):  # and no row knows of the others
        one = rows.take(torch.tensor([i]))
        alone = choose_cpu(logits[i : i + 1].clone(), one, **limits)
        assert torch.equal(alone.entropy_R[0], got.entropy_R[i])
        assert torch.equal(alone.logprob_R[0], got.logprob_R[i])


@pytest.mark.parametrize("chooser", [choose, choose_cpu])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 3.0])
def test_a_restricted_row_chooses_as_if_other_tokens_were_not_there(chooser: Any, temperature: float) -> None:
    vocab, count = 70, 50
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(3)) * 3
    free = SamplingRows(
        temperature_R=torch.full((count,), temperature), seed_R=torch.arange(count), position_R=torch.arange(count),
        suppress_R=torch.zeros(count, dtype=torch.bool), sampled=temperature > 0, suppressing=False,
    )  # fmt: skip
    allowed = random_allowed(free.suppress_R, vocab, 4)
    limits = {"mask_token_id": 0, "vocab_limit": vocab}
    restricted = chooser(logits.clone(), replace(free, allowed=allowed), **limits)
    for row, line in enumerate(allowed.line_R.tolist()):
        bits = [int(word) & 0xFFFFFFFF for word in allowed.bits_UW[line]] if line >= 0 else [0xFFFFFFFF] * 3
        may = [token for token in range(vocab) if bits[token // 32] >> token % 32 & 1]
        may = [-2 - line] if line < -1 else may
        only = torch.full((vocab,), -torch.inf)
        only[may] = logits[row, may]
        params = SamplingParams(temperature=temperature)
        assert int(restricted.token_R[row]) == choose_token(only, params, row, row), row
    plain = chooser(logits.clone(), free, **limits)
    assert torch.equal(restricted.entropy_R, plain.entropy_R), "of the model's own distribution"


@pytest.mark.parametrize("chooser", [choose, choose_cpu])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_allowed_the_choice_is_token_0(chooser: Any, temperature: float) -> None:
    rows = SamplingRows(
        temperature_R=torch.tensor([temperature]), seed_R=torch.tensor([1]), position_R=torch.tensor([2]),
        suppress_R=torch.tensor([False]), sampled=temperature > 0, suppressing=False,
        allowed=AllowedRows(bits_UW=torch.zeros(1, 2, dtype=torch.int32), line_R=torch.tensor([0])),
    )  # fmt: skip
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1))
    assert chooser(logits, rows, mask_token_id=0, vocab_limit=40).token_R.tolist() == [0]
