"""The decoder of a CPU's kernels agrees with the plain decoder and the oracle's attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from testing.engine.engines import requests_of, run
from testing.engine.hidden_rows import TARGET_PROMPTS, Rows, model_of, observe
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
from wedlm_core.model.decoder import InBlocks
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

PARAMS = SamplingParams(max_tokens=12, window_size=4, ignore_eos=True)
HAS_BFLOAT16 = "bfloat16" in map(numeric_kind, numbers_here())


def rows_of(folder: Path, config: EngineConfig) -> Rows:
    prompts = [TARGET_PROMPTS[n] for n in (65, 1, 16, 5)]
    return observe(folder, requests_of(prompts, PARAMS), config)[1]


@pytest.mark.parametrize("page_size", [1, 16, 128])
@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
def test_prefill_rows_agree_with_the_plain_decoder_and_oracle_attention(
    request: pytest.FixtureRequest, model: str, page_size: int
) -> None:
    folder = request.getfixturevalue(model)
    config = EngineConfig(page_size=page_size, prefill_chunk=9)
    fast, slow = rows_of(folder, config), rows_of(folder, replace(config, attention="oracle", batch_invariant=False))
    assert fast.prefill.keys() == slow.prefill.keys()
    for key, value in slow.prefill.items():
        torch.testing.assert_close(fast.prefill[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
def test_keys_and_values_in_bfloat16_agree_with_an_oracle_that_rounds_them(
    request: pytest.FixtureRequest, model: str
) -> None:
    """A number near the middle of two may be rounded to either, for sums differ in their last bits."""
    folder = request.getfixturevalue(model)
    config = EngineConfig(page_size=16, prefill_chunk=9, kv_cache_dtype="bfloat16")
    fast, slow = rows_of(folder, config), rows_of(folder, replace(config, attention="oracle", batch_invariant=False))
    exact = rows_of(folder, replace(config, kv_cache_dtype="auto"))
    want, got, wide = (torch.stack([one.prefill[key] for key in slow.prefill]) for one in (slow, fast, exact))
    assert 0 < (wide - want).norm() < 0.05 * want.norm(), "rounding shows"
    assert (got - want).norm() < 0.2 * (wide - want).norm()


def test_it_is_the_default_on_cpu_in_float32(qwen3_folder: Path) -> None:
    assert Engine(*model_of(qwen3_folder))._runner.backend.name == "compiled"


@pytest.mark.parametrize("numbers", ["bfloat16", "int8"])
@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
def test_narrow_weights_agree_with_the_plain_decoder(request: pytest.FixtureRequest, model: str, numbers: str) -> None:
    """The oracle computes in float32 with the same narrow weights."""
    folder = request.getfixturevalue(model)
    dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
    weights = "int8" if numbers == "int8" else "auto"
    tokenizer, prompts = Tokenizer.load(folder), [TARGET_PROMPTS[n] for n in (65, 1, 16, 5)]

    def rows(dtype: torch.dtype, config: EngineConfig) -> Rows:
        narrow = load_model(folder, max_positions=700, dtype=dtype, weight_dtype=weights)
        engine = Engine(narrow.float() if config.attention == "oracle" else narrow, tokenizer, config)
        if config.attention == "auto":
            fast = weights == "int8" or HAS_BFLOAT16
            assert (engine._runner.model_runner._team is not None) == fast
        found = Rows(engine)
        run(engine, requests_of(prompts, PARAMS))
        return found

    fast = rows(dtype, EngineConfig())
    slow = rows(dtype, EngineConfig(attention="oracle", batch_invariant=False))
    assert fast.prefill.keys() == slow.prefill.keys()
    want = torch.stack(list(slow.prefill.values()))
    got = torch.stack([fast.prefill[key] for key in slow.prefill])
    # bfloat16 also rounds the rows that weights are multiplied with
    assert (got - want).norm() < {"bfloat16": 0.05, "int8": 0.01}[numbers] * want.norm()


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
            for rows in (1, 33, 129, 1000):
                for first in (0, 5):
                    some = slice(first, first + rows)
                    assert torch.equal(F.linear(x_RI[some], weight_OI, bias_O), whole_RO[some])
    finally:
        torch.set_num_threads(before)
