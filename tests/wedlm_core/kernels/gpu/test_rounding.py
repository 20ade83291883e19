"""Rounding rows to 8 bits in one kernel, and scaling sums in one, give the bits of torch's operations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.int8 import scaled
from wedlm_core.model.int8_gpu import rounded_gpu, scaled_gpu
from wedlm_core.model.quantised import round_in_one_pass, rounded_to_fp8

pytest.importorskip("triton", reason="triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@given(
    rows=st.integers(1, 6),
    width=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    wide=st.floats(0, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_bytes_and_scales_are_those_of_torch(rows: int, width: int, seed: int, wide: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * torch.exp(wide * torch.randn(rows, width, generator=generator))
    x[0, : width // 2] = 0
    x = x.to(dtype).to(DEVICE)
    want, want_scale = rounded_to_fp8(x)
    found, found_scale = round_in_one_pass(x)
    assert torch.equal(found_scale, want_scale)
    assert torch.equal(found.float(), want.float())


def test_every_8_bit_number_and_every_tie_between_two() -> None:
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # 0 to 448
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, ties, -numbers, -ties])[None].to(DEVICE)  # its largest is 448, so its scale is 1
    found, scale = round_in_one_pass(x)
    assert float(scale) == 1
    assert torch.equal(found.float(), x.to(torch.float8_e4m3fn).float())


def test_rows_that_are_not_contiguous() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).to(DEVICE).t()
    assert torch.equal(round_in_one_pass(x)[0].float(), rounded_to_fp8(x)[0].float())


@given(
    rows=st.integers(1, 6),
    width=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_int8_rows_are_those_of_torch(rows: int, width: int, seed: int, size: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * size
    x[0, : width // 2] = 0
    x[-1, : width // 2] = x[-1, -1] * 0.5  # ties
    x = x.to(dtype).to(DEVICE)
    for mine, want in zip(rounded_gpu(x), rounded(x), strict=True):
        assert torch.equal(mine, want)
    turned = x.t()
    for mine, want in zip(rounded_gpu(turned), rounded(turned), strict=True):
        assert torch.equal(mine, want)


@given(
    rows=st.integers(1, 6),
    width=st.sampled_from([1, 33, 1024, 1500]),
    seed=st.integers(0, 2**31),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=20, deadline=None)
def test_scaled_sums_are_those_of_torch(rows: int, width: int, seed: int, bias: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    sums = torch.randint(-(2**31), 2**31 - 1, (rows, width), dtype=torch.int32, generator=generator).to(DEVICE)
    scale_R, scale_O = (torch.rand(size, generator=generator).to(DEVICE) * 1e-6 for size in (rows, width))
    bias_O = torch.randn(width, generator=generator).to(dtype).to(DEVICE) if bias else None
    assert torch.equal(scaled_gpu(sums, scale_R, scale_O, bias_O, dtype), scaled(sums, scale_R, scale_O, bias_O, dtype))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_int8_row_that_is_no_number_has_no_scale(value: float) -> None:
    x = torch.ones(3, 40).to(DEVICE)
    x[1, 7] = value
    assert rounded_gpu(x)[1].isnan().tolist() == [False, True, False]


@pytest.mark.gpu  # int8 products of the device
def test_a_gpu_gives_the_bits_of_a_cpu() -> None:
    """The sums are integers, and what lies around them rounds alike: int8 is exact across devices."""
    from wedlm_core.model.int8 import Int8Linear

    torch.manual_seed(5)
    layer, x = Int8Linear.of(torch.nn.Linear(256, 512).requires_grad_(False)), torch.randn(33, 256)
    want = layer(x)
    assert torch.equal(layer.cuda()(x.cuda()).cpu(), want)
