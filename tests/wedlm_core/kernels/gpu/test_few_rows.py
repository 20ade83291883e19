"""Products of few rows equal torch's, whatever the sizes; without a GPU the kernel is interpreted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from wedlm_core.kernels.gpu.few_rows import FEW_ROWS, multiply_few, takes_few

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32  # the interpreter multiplies no bfloat16
TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


def drawn(rows: int, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    x_RI, weight_OI, bias_O = (torch.randn(shape, generator=generator).to(DEVICE, DTYPE) for shape in shapes)
    return x_RI, weight_OI, bias_O


@given(
    rows=st.integers(1, FEW_ROWS),
    inputs=st.sampled_from([256, 512, 1792]),
    outputs=st.integers(1, 200),
    biased=st.booleans(),
)
@example(rows=16, inputs=512, outputs=128, biased=True)
@settings(max_examples=25, deadline=None)
def test_a_product_equals_that_of_torch(rows: int, inputs: int, outputs: int, biased: bool) -> None:
    x_RI, weight_OI, bias_O = drawn(rows, inputs, outputs)
    found = multiply_few(x_RI, weight_OI, bias_O if biased else None)
    expected = torch.nn.functional.linear(x_RI.double(), weight_OI.double(), bias_O.double() if biased else None)
    assert found.dtype == DTYPE
    assert (found.double() - expected).norm() <= TOLERANCE[DTYPE] * expected.norm()


def test_a_row_depends_on_itself_alone() -> None:
    x_RI, weight_OI, _ = drawn(FEW_ROWS, 768, 70)
    whole = multiply_few(x_RI, weight_OI, None)
    for rows in (slice(0, 1), slice(3, 9), slice(15, 16)):
        assert torch.equal(multiply_few(x_RI[rows].contiguous(), weight_OI, None), whole[rows])
    x_RI[4] = torch.nan
    damaged = multiply_few(x_RI, weight_OI, None)
    assert damaged[4].isnan().all()
    assert torch.equal(damaged[5:], whole[5:])


@pytest.mark.parametrize(("rows", "inputs"), [(FEW_ROWS + 1, 256), (1, 300), (0, 256)])
def test_other_sizes_are_refused(rows: int, inputs: int) -> None:
    assert not takes_few(rows, inputs)
    x_RI, weight_OI, _ = drawn(rows, inputs, 8)
    with pytest.raises(AssertionError, match=f"{rows} rows of {inputs} inputs"):
        multiply_few(x_RI, weight_OI, None)
