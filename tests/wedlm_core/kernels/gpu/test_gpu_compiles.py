"""Every kernel that an engine launches compiles for A100 and H100 on a machine that has neither, and fits them.

The launches are the engine's own, with its arguments, for the shape of an 8B model and for the shipped one
(:mod:`testing.ahead_of_time`). Triton's compiler and its assembler need no device. By default each kernel is compiled
in one or two variants, for the 8B shape in bfloat16 and H100; in all and for A100 with ``-m slow``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from testing.ahead_of_time.__main__ import faults
from testing.ahead_of_time.variants import products
from testing.engine.published_models import WEDLM_8B
from testing.repository import ROOT
from wedlm_core.model.int8_gpu import _int4_tiles_of, tiles_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux"),
    pytest.mark.timeout(600),  # all of it takes about 60 s of processor time, and a machine may be busy
]


def environment() -> dict[str, str]:
    """Without the interpreter, which this process has chosen."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**plain, "TRITON_DEFAULT_FP_FUSION": "1"}  # today's default, set so that Triton does not warn


def _slow(capability: int, scope: str) -> Any:
    return pytest.param((capability, scope), marks=pytest.mark.slow(reason="the compiler takes 20 s and more"))


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Variants of the kernels, compiled for one compute capability in a process of its own."""

    capability: int
    variants: list[dict[str, Any]]


@pytest.fixture(
    scope="module", params=[(90, "brief"), _slow(80, "brief"), _slow(80, "all"), _slow(90, "all")], ids=str
)  # fmt: skip
def compiled(request: pytest.FixtureRequest) -> Compiled:
    capability, scope = request.param
    some = ["--brief"] if scope == "brief" else []
    done = subprocess.run(
        [sys.executable, "-m", "testing.ahead_of_time", str(capability), "--json", *some], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return Compiled(capability=capability, variants=json.loads(done.stdout))


def test_every_kernel_fits_in_shared_memory_and_registers(compiled: Compiled) -> None:
    wrong = [(v["launch"], why) for v in compiled.variants for why in faults(compiled.capability, v["kernel"])]
    assert not wrong


def test_every_kernel_of_the_packages_is_among_them(compiled: Compiled) -> None:
    names = {v["kernel"]["name"] for v in compiled.variants}
    expected = {"attend_tiles", "join_splits", "_add_rms_norm", "_norm_rope", "_silu_mul", "reduce_tiles",
                "combine_tiles", "_double", "round_rows_int8", "multiply_int8", "multiply_int4", "multiply_few_rows",
                "place_tiles", "pack_rows", "fill_inputs", "advance_windows"}  # fmt: skip
    assert names == expected | ({"round_rows"} if compiled.capability >= 89 else set())
    assert any("fp8" in v["launch"] for v in compiled.variants) == (compiled.capability >= 89)


def test_products_with_every_kind_of_tiles_are_among_them() -> None:
    counts, outputs = range(1, 600), (1, 96, 1024, 6144, 16383, 16384, 24576, 151936)
    shapes = products(WEDLM_8B)
    assert {tiles_of(*shape) for shape in shapes} == {tiles_of(r, o) for r in counts for o in outputs}
    narrow = [rows for rows, outputs in shapes if outputs == WEDLM_8B.intermediate_size]
    for hopper in (True, False):
        kinds = {_int4_tiles_of(rows, hopper=hopper) for rows in counts}
        assert {_int4_tiles_of(rows, hopper=hopper) for rows in narrow} == kinds


def test_half_precision_attention_is_on_tensor_cores_and_the_sampler_reads_whole_vectors(compiled: Compiled) -> None:
    for variant in compiled.variants:
        kernel, launch = variant["kernel"], variant["launch"]
        if kernel["name"] == "attend_tiles" and "bfloat16" in launch:
            assert kernel["tensor_cores"] > 0, launch
        if kernel["name"] == "reduce_tiles" and "8B" in launch:
            assert kernel["vectors"] > 0, launch
            assert kernel["registers"] <= 128, f"{launch}: four programs of four warps fit on a processor"


def test_kernels_of_layers_touch_no_memory_before_they_wait_for_the_kernel_before_them(compiled: Compiled) -> None:
    """Their launches begin while that kernel runs, so an earlier read could miss its writes."""
    waits = {v["kernel"]["name"] for v in compiled.variants if v["kernel"]["early"] is not None}
    layer = {"_add_rms_norm", "_norm_rope", "_silu_mul", "attend_tiles", "join_splits", "multiply_int8",
             "multiply_few_rows", "round_rows_int8"}  # fmt: skip
    assert waits == (layer if compiled.capability >= 90 else set())
    for variant in compiled.variants:
        if variant["kernel"]["name"] in waits:
            assert variant["kernel"]["early"] == 0, variant["launch"]


def test_floats_of_eight_bits_are_refused_in_one_line_where_the_device_lacks_them() -> None:
    code = """
from testing import pretend
pretend.install(capability=(8, 0))
from wedlm_core import LLM, EngineConfig
from wedlm_core.errors import ConfigError
try:
    LLM("no/such/model", device="cuda", config=EngineConfig(kv_cache_dtype="fp8_e4m3"))
except ConfigError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**environment(), "TRITON_INTERPRET": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("\n") == 1, "before anything is loaded"
    assert run.stdout.startswith("kv_cache_dtype='fp8_e4m3': 8-bit floats need a device of compute capability 8.9")
    assert 'kv_cache_dtype="auto"' in run.stdout


def test_the_limits_catch_what_they_should() -> None:
    good = {"shared": 163 << 10, "stack": 0}
    assert faults(80, good) == []
    assert faults(90, {**good, "shared": 227 << 10}) == []
    assert len(faults(80, {**good, "shared": (163 << 10) + 1})) == 1
    assert faults(90, {**good, "stack": 8}) == ["spills 8 bytes"]
    assert len(faults(90, {**good, "early": 2})) == 1
