"""Adjustments of rows, token by token: the choices of the oracle, and logits as they were afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testing.engine.random_tables import SLOTS, random_tables
from testing.engine.sampling_oracle import adjusted_row, choose
from wedlm_core.decoding.adjustments import adjustments_record
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.kernels.cpu.adjusting import adjust_row, restore_row
from wedlm_core.kernels.cpu.sampling import scratch_of


@pytest.mark.parametrize("vocab", [31, 1_200])
def test_adjusted_logits_are_those_of_the_oracle_and_are_put_back(vocab: int) -> None:
    generator = torch.Generator().manual_seed(11)
    scratch = scratch_of(vocab).edits
    for _ in range(20):
        tables = random_tables(vocab, generator)
        slot_R = torch.randint(0, SLOTS, (8,), generator=generator)
        position_R = torch.minimum(
            tables.prompt_S[slot_R] + torch.randint(0, 30, (8,), generator=generator), torch.tensor(39)
        )
        logits_RV = torch.randn(8, vocab, generator=generator)
        logits_RV[0, ::3] = -torch.inf
        record, work = adjustments_record(tables), logits_RV.clone().numpy()
        for r in range(8):
            slot, position = int(slot_R[r]), int(position_R[r])
            count = adjust_row(work, r, slot, position, record.ctypes.data, scratch)
            assert torch.equal(torch.from_numpy(work[r]), adjusted_row(logits_RV[r], tables, slot, position))
            restore_row(work, r, scratch, count)
        assert torch.equal(torch.from_numpy(work), logits_RV)
        assert not scratch.times.any()
        assert not scratch.noted.any()


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("suppressing", [False, True])
def test_choices_of_adjusted_rows_have_the_entropies_of_the_oracle(temperature: float, suppressing: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    tables = random_tables(1_200, generator)
    slot_R = torch.arange(SLOTS)
    rows = SamplingRows(
        temperature_R=torch.full((SLOTS,), temperature),
        seed_R=slot_R,
        position_R=tables.known_S,
        suppress_R=torch.full((SLOTS,), suppressing),
        adjustments_N=torch.from_numpy(adjustments_record(tables).view(np.int64)),
        slot_R=slot_R,
        sampled=temperature > 0,
        suppressing=suppressing,
    )
    logits_RV = torch.randn(SLOTS, 1_200, generator=generator)
    logits_RV[:, 1:8:6] += 200.0  # tokens that a bias of -100 and penalties take far down
    limits = {"mask_token_id": 0, "vocab_limit": 1_190}
    expected, found = choose(logits_RV, rows, tables=tables, **limits), choose_cpu(logits_RV.clone(), rows, **limits)
    assert torch.equal(found.token_R, expected.token_R)
    torch.testing.assert_close(found.entropy_R, expected.entropy_R, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logprob_R, expected.logprob_R, rtol=1e-4, atol=1e-5)
