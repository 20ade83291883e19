"""Rounding rows to 8 bits in one kernel gives the bits of torch's operations, which are those of every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.int4 import Int4Linear, rounded_to_nibbles
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.int8_gpu import rounded_gpu
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
@settings(max_examples=20, deadline=None)
def test_bytes_and_scales_are_those_of_torch(rows: int, width: int, seed: int, wide: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * torch.exp(wide * torch.randn(rows, width, generator=generator))
    x[0, : width // 2] = 0
    x = x.to(dtype).to(DEVICE)
    want, want_scale = rounded_to_fp8(x)
    found, found_scale = round_in_one_pass(x)
    assert torch.equal(found_scale, want_scale)
    assert torch.equal(found.view(torch.uint8), want.view(torch.uint8)), "a zero's sign too"


def test_every_8_bit_number_and_every_tie_between_two() -> None:
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # 0 to 448
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, ties, -numbers, -ties])[None].to(DEVICE)  # its largest is 448, so its scale is 1
    found, scale = round_in_one_pass(x)
    assert float(scale) == 1
    assert torch.equal(found.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


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
@settings(max_examples=20, deadline=None)
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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_int8_row_that_is_no_number_has_no_scale(value: float) -> None:
    x = torch.ones(3, 40).to(DEVICE)
    x[1, 7] = value
    assert rounded_gpu(x)[1].isnan().tolist() == [False, True, False]


class _NoDivisionByNumbers(TorchFunctionMode):
    """Fails where a tensor is divided by a number: by its reciprocal on CUDA, which rounds otherwise."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if "div" in getattr(func, "__name__", ""):
            assert all(isinstance(each, torch.Tensor) for each in args[:2]), "divides by a number"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", [rounded, rounded_to_fp8, rounded_to_nibbles])
def test_nothing_that_rounds_divides_by_a_number(form: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(AssertionError), _NoDivisionByNumbers():
        torch.ones(2) / 3
    with _NoDivisionByNumbers():
        form(torch.randn(3, 64))


def _rounded_weights(weight: torch.Tensor) -> list[torch.Tensor]:
    linear = torch.nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    int8, int4, (fp8, fp8_scale) = Int8Linear.of(linear), Int4Linear.of(linear), rounded_to_fp8(weight)
    return [int8.weight, int8.scale_O, int4.weight, int4.multiplier_OG, int4.scale_O, fp8.float(), fp8_scale]


@pytest.mark.gpu  # rounding of a device's own arithmetic
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_rounded_on_a_gpu_are_those_rounded_on_a_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    weight = torch.randn(3000, 640) * torch.logspace(-6, 4, 3000)[:, None]
    weight[5] = 0
    weight[6, 40:] = 0
    weight = weight.to(dtype)
    for on_gpu, on_cpu in zip(_rounded_weights(weight.cuda()), _rounded_weights(weight), strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.gpu  # int8 products of the device
def test_a_gpu_gives_the_bits_of_a_cpu() -> None:
    """The sums are integers, and the work around them rounds the same: int8 is exact across devices."""
    torch.manual_seed(5)
    layer, x = Int8Linear.of(torch.nn.Linear(256, 512).requires_grad_(False)), torch.randn(33, 256)
    want = layer(x)
    assert torch.equal(layer.cuda()(x.cuda()).cpu(), want)
