"""Adjustments of rows, token by token: the logits of the oracle, and those from before afterwards."""

from __future__ import annotations

import pytest
import torch

from testing.engine.random_tables import SLOTS, random_tables
from testing.engine.sampling_oracle import adjusted_row
from wedlm_core.decoding.adjustments import adjustments_record
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
