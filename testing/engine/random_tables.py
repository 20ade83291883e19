"""Random adjustments of slots, for tests of samplers."""

from __future__ import annotations

import torch

from wedlm_core.decoding.adjustments import AdjustmentTables

SLOTS, LONGEST = 6, 40


def random_tables(vocab: int, generator: torch.Generator) -> AdjustmentTables:
    """Slots with every adjustment in some strength, and lists of several lengths; the last slot uses none."""

    def ids(*shape: int, least: int = 0) -> torch.Tensor:
        return torch.randint(least, min(vocab, 30), shape, generator=generator)

    words = ids(3, 4, 3)
    words[0], words[1, :, 0], words[2, 1:, :2] = -1, -1, -1
    stops = torch.cat([ids(3, 2), torch.tensor([[-1], [vocab + 5], [-1]])], dim=1)
    columns = {
        "repetition_penalty": torch.tensor([1.0, 1.3, 1.0, 0.8, 1.1, 1.0]),
        "frequency_penalty": torch.tensor([0.0, 0.5, 0.7, 0.0, -0.2, 0.0]),
        "presence_penalty": torch.tensor([0.0, 0.0, 0.4, 0.0, 0.3, 0.9]),
        "min_tokens": torch.tensor([0, 30, 0, 5, 0, 0]),
    }
    return AdjustmentTables(
        columns=columns,
        lists={
            "stop_ids": stops[[0, 1, 2, 1, 0, 2]],
            "suppressed": torch.tensor([[-1, -1], [2, -1], [9, vocab + 3]])[[0, 2, 1, 0, 0, 1]],
            "bias_ids": torch.tensor([[-1, -1], [1, 7], [vocab + 1, 3]])[[0, 1, 2, 0, 1, 2]],
            "bias_values": torch.tensor([[0.0, 0.0], [2.0, -100.0], [5.0, 0.25]])[[0, 1, 2, 0, 1, 2]],
            "bad_words": words[[0, 1, 2, 2, 1, 0]],
        },
        uses_S=torch.arange(SLOTS) < SLOTS - 1,
        prompt_S=torch.tensor([0, 4, 10, 3, 8, 1]),
        known_S=torch.tensor([20, 25, 30, 12, 39, 5]),
        tokens_SL=ids(SLOTS, LONGEST),
    )  # fmt: skip
