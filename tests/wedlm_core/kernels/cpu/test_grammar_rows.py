"""The pass over rows with a grammar equals operations on tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wedlm_core.decoding.allowed_tokens import AllowedTokens

SLOTS = 9


@pytest.mark.parametrize("seed", range(5))
def test_lines_of_rows_are_those_of_tensors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first_S, count_S, position_S = torch.from_numpy(
        np.stack([rng.integers(-1, 30, SLOTS), rng.integers(0, 9, SLOTS), rng.integers(0, 20, SLOTS)])
    )
    allowed = AllowedTokens(
        bits_UW=torch.empty(0, 1), line_N=torch.from_numpy(rng.integers(-9, 9, 40)), first_S=first_S, count_S=count_S,
        position_S=position_S,
    )  # fmt: skip
    slot_R, position_R = torch.from_numpy(rng.integers(0, SLOTS, 300)), torch.from_numpy(rng.integers(0, 30, 300))
    line_R = allowed.rows(slot_R, position_R).line_R
    assert torch.equal(line_R, allowed._line_tensor(slot_R, position_R))
    assert len(set(line_R.tolist())) > 5
