"""Rows rounded to 8-bit floats in one pass, against torch's own conversion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.model.quantised import _rounded, round_in_one_pass

pytest.importorskip("triton", reason="triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# A process of its own: here kernels are interpreted, and Triton decides that when it decorates them.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wedlm_core.kernels.triton_rounding import round_rows
signature = dict(x_ptr="*bf16", row_stride="i32", byte_ptr="*fp8e4nv", scale_ptr="*fp32", width="i32")
signature["BLOCK"] = "constexpr"
attrs = {(i,): [["tt.divisibility", 16]] for i in range(5)}
source = ASTSource(round_rows, signature, constexprs={(5,): 16384}, attrs=attrs)
triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
"""


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
    want, want_scale = _rounded(x, torch.float8_e4m3fn)
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
    assert torch.equal(round_in_one_pass(x)[0].float(), _rounded(x, torch.float8_e4m3fn)[0].float())


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_it_compiles_for_hopper() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
