"""Which line of bits restricts a row: in arrays as in tensors, and only where the state is known."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.decoding.allowed_tokens import FREE, AllowedTokens

SLOTS, STATES = 4, 3


@given(st.integers(0, 2**31), st.integers(1, 12))
def test_lines_are_those_of_tensors_and_stay_within_a_slots_own(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    count_S = rng.integers(1, STATES + 1, SLOTS)
    first_S = np.where(rng.random(SLOTS) < 0.3, -1, np.cumsum(count_S) - count_S)
    begin_S = rng.integers(0, 5, SLOTS)
    line_N = rng.integers(-9, 9, int(count_S.sum()))
    allowed = AllowedTokens(
        bits_UW=torch.zeros(9, 1, dtype=torch.int32), line_N=torch.from_numpy(line_N),
        first_S=torch.from_numpy(first_S), count_S=torch.from_numpy(count_S), position_S=torch.from_numpy(begin_S),
    )  # fmt: skip
    slot_R, position_R = torch.from_numpy(rng.integers(0, SLOTS, rows)), torch.from_numpy(rng.integers(0, 9, rows))
    line_R = allowed.rows(slot_R, position_R).line_R
    assert line_R.dtype == torch.int64
    assert torch.equal(line_R, allowed._line_tensor(slot_R, position_R))
    for slot, position, line in zip(slot_R.tolist(), position_R.tolist(), line_R.tolist(), strict=True):
        state = position - begin_S[slot]
        known = first_S[slot] >= 0 and 0 <= state < count_S[slot]
        assert line == (line_N[first_S[slot] + state] if known else FREE)
