"""The sampling kernels compile for Hopper without a device, read whole vectors and keep to the registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A process of its own: here kernels are interpreted, and Triton decides that when it decorates them.
SCRIPT = """
import json, re, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wedlm_core.decoding import fused
from wedlm_core.kernels.triton_sampling import combine_tiles, reduce_tiles

def compiled(kernel, pointers, constants, aligned, warps):
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else "*" + pointers[n] if n in pointers else "i32" for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in (*pointers, *aligned)}
    values = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=values, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})

flags = dict(SAMPLED=sys.argv[2] != "greedy", TWO_HEATS=sys.argv[2] == "two-heats")
rows = dict(logits_ptr=sys.argv[1], temperature_ptr="fp32", suppress_ptr="i1", partial_ptr="fp32", best_ptr="fp32",
            place_ptr="i32")
found = compiled(
    reduce_tiles, dict(rows, seed_ptr="i64", position_ptr="i64"),
    dict(flags, LIBM=True, TILE=fused._TILE, GROUP=fused._GROUP), ("row_stride", "vocab"), fused._WARPS,
)
compiled(
    combine_tiles, dict(rows, token_ptr="i64", entropy_ptr="fp32", logprob_ptr="fp32"),
    dict(TWO_HEATS=flags["TWO_HEATS"], GROUPS=64, SPLITS=8), ("row_stride",), 1,
)
with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(found.asm["cubin"])
    file.flush()
    tool = triton.knobs.nvidia.cuobjdump.path
    usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
registers, stack = map(int, re.search(r"reduce_tiles:\\s+REG:(\\d+) STACK:(\\d+)", usage).groups())
print(json.dumps({"vectors": found.asm["ptx"].count("ld.global.v4.b32"), "registers": registers, "stack": stack}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.parametrize(("dtype", "stages"), [("fp32", "greedy"), ("bf16", "two-heats")])  # the least and the most
def test_the_sampler_compiles_for_hopper(dtype: str, stages: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # today's default, said so that Triton does not warn
    command = [sys.executable, "-c", SCRIPT, dtype, stages]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert found["vectors"] > 0, "logits are read 16 bytes at a time"
    assert found["stack"] == 0, "nothing is spilt to memory"
    assert found["registers"] <= 128, "four programs of four warps fit on a processor"
