"""Values reach the slots of a column, whichever way they go."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wedlm_core.engine.forward import transfer
from wedlm_core.engine.forward.transfer import put


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("values", [[1], [0, 1, 1], [[1, 0], [0, 1], [1, 1]], [[1, 0]]], ids=str)
def test_tensors_carry_what_is_written_in_place(dtype: torch.dtype, values: list[object]) -> None:
    """One value or one line spreads to all slots, and other slots keep theirs."""
    slots_S, given = np.array([3, 0, 2]), torch.tensor(values).to(dtype).numpy()
    columns = [torch.ones(5, *given.shape[1:]).to(dtype) for _ in range(2)]
    put(columns[0], slots_S, given)
    transfer._copy_in(columns[1], slots_S, given)
    assert torch.equal(*columns)
    for place, slot in enumerate(slots_S.tolist()):
        np.testing.assert_array_equal(columns[0][slot].numpy(), np.broadcast_to(given, (3, *given.shape[1:]))[place])
    assert columns[0][[1, 4]].all()
