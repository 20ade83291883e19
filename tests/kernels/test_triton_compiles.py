"""The kernels compile for GPUs on a machine that has none: Triton's compiler and its assembler need no device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A process of its own: here kernels are interpreted, and Triton decides that when it decorates them.
SCRIPT = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wedlm_core.kernels import triton_attention, triton_kv

def compiled(kernel, pointers, floats, constants, aligned):
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else "*" + pointers[n] if n in pointers else
                 "fp32" if n in floats else "i32" for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in (*pointers, *aligned)}
    values = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=values, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})

dtype, cache, split, page, dim = sys.argv[1], sys.argv[2], sys.argv[3] == "split", int(sys.argv[4]), int(sys.argv[5])
block_n = 32 if dtype == "fp32" else 64
part = "fp32" if split else dtype
tile = dict(HEADS=32, DIM=dim, DIM_P=max(16, triton.next_power_of_2(dim)), BLOCK_N=block_n, SEQ_P=128)
integers = dict(cu_rows="i32", kv_lengths="i32")
parts = dict(parts=part, tops=part, totals=part)
found = compiled(
    triton_attention.attend_tiles, dict(q=dtype, k=cache, v=cache, out=dtype, pages="i32", **parts, **integers),
    ("scale", "v_scale"),
    dict(GROUP=4, GROUP_P=4, PAGE=page, BLOCK_Q=8, SPLIT=split, SKIP_MASK=split, FP8=cache == "u8", **tile),
    ("q_row_stride", "q_head_stride", "num_slots"),
)
assert found.metadata.shared <= 226 * 1024, found.metadata.shared
if split:
    compiled(triton_attention.join_splits, dict(out=dtype, **parts, **integers), ("v_scale",), tile, ())
compiled(
    triton_kv._write, dict(k_in=dtype, v_in=dtype, k_pool=cache, v_pool=cache, slots="i64"), ("k_scale", "v_scale"),
    dict(HEADS=8, DIM=dim, HEADS_P=8, DIM_P=tile["DIM_P"], FP8=cache == "u8"), ("num_slots",),
)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.parametrize(
    "case",
    [
        ("bf16", "bf16", "split", "64", "128"),
        ("bf16", "u8", "whole", "16", "128"),
    ],
    ids="-".join,
)
def test_kernels_compile_for_hopper(case: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # today's default, said so that Triton does not warn
    run = subprocess.run([sys.executable, "-c", SCRIPT, *case], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
