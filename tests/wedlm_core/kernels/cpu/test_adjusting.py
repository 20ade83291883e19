"""Adjustments of rows, token by token: the choices of the tensor operations, and logits as they were afterwards."""

from __future__ import annotations

import pytest
import torch

from wedlm_core.decoding.adjustments import ADJUSTMENTS, AdjustedRows, AdjustmentTables, adjust_logits
from wedlm_core.decoding.sampling import SamplingRows, choose
from wedlm_core.decoding.sampling_cpu import adjustments_record, choose_cpu
from wedlm_core.kernels.cpu.adjusting import adjust_row, restore_row
from wedlm_core.kernels.cpu.sampling import scratch_of

SLOTS, LONGEST = 6, 40


def tables_of(vocab: int, generator: torch.Generator) -> AdjustmentTables:
    """Slots with every adjustment in some strength, and words, stops and biases of several lengths."""

    def ids(*shape: int, least: int = 0) -> torch.Tensor:
        return torch.randint(least, min(vocab, 30), shape, generator=generator)

    words = ids(3, 4, 3)
    words[0], words[1, :, 0], words[2, 1:, :2] = -1, -1, -1
    columns = {
        "repetition_penalty": torch.tensor([1.0, 1.3, 1.0, 0.8, 1.1, 1.0]),
        "frequency_penalty": torch.tensor([0.0, 0.5, 0.7, 0.0, -0.2, 0.0]),
        "presence_penalty": torch.tensor([0.0, 0.0, 0.4, 0.0, 0.3, 0.9]),
        "min_tokens": torch.tensor([0, 30, 0, 5, 0, 0]),
    }
    return AdjustmentTables(
        columns=columns,
        lists={
            "stop_ids": torch.cat([ids(3, 2), torch.tensor([[-1], [vocab + 5], [-1]])], dim=1),
            "suppressed": torch.tensor([[-1, -1], [2, -1], [9, vocab + 3]]),
            "bias_ids": torch.tensor([[-1, -1], [1, 7], [vocab + 1, 3]]),
            "bias_values": torch.tensor([[0.0, 0.0], [2.0, -100.0], [5.0, 0.25]]),
            "bad_words": words,
        },
        list_S={
            "suppressed": torch.tensor([0, 2, 1, 0, 0, 1]),
            "stop_ids": torch.tensor([0, 1, 2, 1, 0, 2]), "bias_ids": torch.tensor([0, 1, 2, 0, 1, 2]),
            "bias_values": torch.tensor([0, 1, 2, 0, 1, 2]), "bad_words": torch.tensor([0, 1, 2, 2, 1, 0]),
        },
        uses_S=torch.ones(SLOTS, dtype=torch.bool),
        prompt_S=torch.tensor([0, 4, 10, 3, 8, 1]),
        known_S=torch.tensor([20, 25, 30, 12, 39, 5]),
        tokens_SL=ids(SLOTS, LONGEST),
    )  # fmt: skip


@pytest.mark.parametrize("vocab", [31, 1_200])
def test_adjusted_logits_are_those_of_the_tensor_operations_and_are_put_back(vocab: int) -> None:
    generator = torch.Generator().manual_seed(11)
    scratch = scratch_of(vocab).edits
    for _ in range(20):
        tables = tables_of(vocab, generator)
        slot_R = torch.randint(0, SLOTS, (8,), generator=generator)
        position_R = torch.minimum(
            tables.prompt_S[slot_R] + torch.randint(0, 30, (8,), generator=generator), torch.tensor(39)
        )
        logits_RV = torch.randn(8, vocab, generator=generator)
        logits_RV[0, ::3] = -torch.inf
        rows = AdjustedRows(tables=tables, slot_R=slot_R, position_R=position_R, uses=ADJUSTMENTS, longest=LONGEST)
        expected_RV = adjust_logits(logits_RV, rows)
        record, work = adjustments_record(tables), logits_RV.clone().numpy()
        for r in range(8):
            count = adjust_row(work, r, int(slot_R[r]), int(position_R[r]), record.ctypes.data, scratch)
            assert torch.equal(torch.from_numpy(work[r]), expected_RV[r])
            restore_row(work, r, scratch, count)
        assert torch.equal(torch.from_numpy(work), logits_RV)
        assert not scratch.times.any()
        assert not scratch.noted.any()


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("suppressing", [False, True])
def test_choices_of_adjusted_rows_have_the_entropies_of_the_tensor_operations(
    temperature: float, suppressing: bool
) -> None:
    generator = torch.Generator().manual_seed(5)
    tables = tables_of(1_200, generator)
    slot_R = torch.arange(SLOTS)
    rows = SamplingRows(
        temperature_R=torch.full((SLOTS,), temperature),
        seed_R=slot_R,
        position_R=tables.known_S,
        suppress_R=torch.full((SLOTS,), suppressing),
        adjusted=AdjustedRows(
            tables=tables, slot_R=slot_R, position_R=tables.known_S, uses=ADJUSTMENTS, longest=LONGEST
        ),
        sampled=temperature > 0,
        suppressing=suppressing,
    )
    logits_RV = torch.randn(SLOTS, 1_200, generator=generator)
    logits_RV[:, 1:8:6] += 200.0  # tokens that a bias of -100 and penalties take far down
    limits = {"mask_token_id": 0, "vocab_limit": 1_190}
    expected, found = choose(logits_RV.clone(), rows, **limits), choose_cpu(logits_RV.clone(), rows, **limits)
    assert torch.equal(found.token_R, expected.token_R)
    torch.testing.assert_close(found.entropy_R, expected.entropy_R, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logprob_R, expected.logprob_R, rtol=1e-4, atol=1e-5)
