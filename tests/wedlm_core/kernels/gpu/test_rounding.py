"""Rounding rows to 8-bit floats in one kernel equals torch's conversion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
