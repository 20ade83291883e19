"""Rows of the plain decoder's products have the same bits among any others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wedlm_core.model.products import InBlocks


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_plain_product_have_the_same_bits_in_any_number(threads: int) -> None:
    """As linear layers of torch with 1024 inputs do not: their kernels are others for many rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(0)
        weight_OI, bias_O = torch.randn(1024, 1024, generator=generator), torch.randn(1024, generator=generator)
        x_RI = torch.randn(1030, 1024, generator=generator)
        with InBlocks():
            whole_RO = F.linear(x_RI, weight_OI, bias_O)
            torch.testing.assert_close(
                whole_RO, (x_RI.double() @ weight_OI.double().t() + bias_O).float(), rtol=1e-4, atol=1e-3
            )
            for rows in (1, 2, 7, 33, 64, 129, 1000):
                for first in (0, 5):
                    some = slice(first, first + rows)
                    assert torch.equal(F.linear(x_RI[some], weight_OI, bias_O), whole_RO[some])
    finally:
        torch.set_num_threads(before)
