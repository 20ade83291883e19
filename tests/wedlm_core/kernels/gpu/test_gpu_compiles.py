"""Every kernel that an engine launches compiles for A100 and H100 on a machine that has neither, and fits them.

The launches are the engine's own, with its arguments, for the shape of an 8B model and for the shipped one
(:mod:`testing.ahead_of_time`). Triton's compiler and its assembler need no device. By default each kernel is compiled
in one or two variants, for the 8B shape in bfloat16; in all with ``-m slow``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from testing.ahead_of_time.__main__ import SHARED_BYTES, faults
from testing.ahead_of_time.variants import products
from testing.engine.published_models import WEDLM_8B
from testing.repository import ROOT
from wedlm_core.model.int8_gpu import _int4_tiles_of, tiles_of

CAPABILITIES = sorted(SHARED_BYTES)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux"),
    pytest.mark.timeout(600),  # all of it takes about 60 s of processor time, and a machine may be busy
]


def environment() -> dict[str, str]:
    """Without the interpreter, which this process has chosen."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**plain, "TRITON_DEFAULT_FP_FUSION": "1"}  # today's default, set so that Triton does not warn


@pytest.fixture(scope="module", params=["brief", pytest.param("all", marks=pytest.mark.slow)])
def compiled(request: pytest.FixtureRequest) -> dict[int, list[dict[str, Any]]]:
    """Variants by compute capability, compiled side by side in processes of their own."""
    some = ["--brief"] if request.param == "brief" else []
    running = {
        capability: subprocess.Popen(
            [sys.executable, "-m", "testing.ahead_of_time", str(capability), "--json", *some],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for capability in CAPABILITIES
    }  # fmt: skip
    found = {}
    for capability, process in running.items():
        out, errors = process.communicate(timeout=580)
        assert process.returncode == 0, errors[-3000:]
        found[capability] = json.loads(out)
    return found


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_fits_in_shared_memory_and_registers(
    compiled: dict[int, list[dict[str, Any]]], capability: int
) -> None:
    wrong = [(v["launch"], why) for v in compiled[capability] for why in faults(capability, v["kernel"])]
    assert not wrong


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_of_the_packages_is_among_them(compiled: dict[int, list[dict[str, Any]]], capability: int) -> None:
    names = {v["kernel"]["name"] for v in compiled[capability]}
    expected = {"attend_tiles", "join_splits", "_write", "_add_rms_norm", "_norm_rope", "_silu_mul", "reduce_tiles",
                "combine_tiles", "_double", "round_rows_int8", "multiply_int8", "multiply_int4", "multiply_few_rows",
                "place_tiles", "pack_rows", "fill_inputs", "advance_windows"}  # fmt: skip
    assert names == expected | ({"round_rows"} if capability >= 89 else set())


def test_products_with_every_kind_of_tiles_are_among_them() -> None:
    counts, outputs = range(1, 600), (1, 96, 1024, 6144, 16383, 16384, 24576, 151936)
    shapes = products(WEDLM_8B)
    assert {tiles_of(*shape) for shape in shapes} == {tiles_of(r, o) for r in counts for o in outputs}
    narrow = [rows for rows, outputs in shapes if outputs == WEDLM_8B.intermediate_size]
    for hopper in (True, False):
        kinds = {_int4_tiles_of(rows, hopper=hopper) for rows in counts}
        assert {_int4_tiles_of(rows, hopper=hopper) for rows in narrow} == kinds


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_half_precision_attention_is_on_tensor_cores_and_the_sampler_reads_whole_vectors(
    compiled: dict[int, list[dict[str, Any]]], capability: int
) -> None:
    for variant in compiled[capability]:
        kernel, launch = variant["kernel"], variant["launch"]
        if kernel["name"] == "attend_tiles" and "bfloat16" in launch:
            assert kernel["tensor_cores"] > 0, launch
        if kernel["name"] == "reduce_tiles" and "8B" in launch:
            assert kernel["vectors"] > 0, launch
            assert kernel["registers"] <= 128, f"{launch}: four programs of four warps fit on a processor"


def test_eight_bits_are_compiled_where_the_device_has_them_and_refused_elsewhere_in_one_line(
    compiled: dict[int, list[dict[str, Any]]],
) -> None:
    assert any("fp8" in v["launch"] for v in compiled[90])
    assert not any("fp8" in v["launch"] for v in compiled[80])
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
