"""An 8-bit KV pool takes half the bytes, stores nearby values, and verified decoding stays exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testing.engine.attention import model_shape
from testing.engine.engines import loaded, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.errors import ConfigError
from wedlm_core.kv.pool import KVPool, kv_dtype_of
from wedlm_core.types import SamplingParams

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn


def test_entries_are_rounded_to_three_bits_and_held_in_range() -> None:
    pool = KVPool(model_shape(4, 2, 32), 4, 16, device=CPU, dtype=torch.float32, kv_dtype=FP8)
    k, v = torch.randn(2, 20, 2, 32, generator=torch.Generator().manual_seed(0))
    k[3, 1, 5] = 1000.0
    entries = torch.arange(7, 27)
    pool.write_entries(0, entries, k, v)
    rows = pool.flat_index(entries)
    keys, values = (x.view(2, 20, 32).transpose(0, 1) for x in (pool.keys(0, rows), pool.values(0, rows)))
    assert float(keys[3, 1, 5]) == 448
    k[3, 1, 5] = 448
    for found, given in ((keys, k), (values, v)):
        # Half a step of a 3-bit mantissa, or of the smallest numbers, which are 2^-9 apart.
        assert torch.all((found - given).abs() <= torch.clamp(given.abs() / 16, min=2**-10))


def test_int8_entries_are_rounded_at_scales_of_their_own_and_cleared_with_their_pages() -> None:
    pool = KVPool(model_shape(4, 2, 32), 4, 16, device=CPU, dtype=torch.float32, kv_dtype=torch.int8)
    k, v = torch.randn(2, 20, 2, 32, generator=torch.Generator().manual_seed(0))
    k[3, 1], v[5, 0] = 1000.0, torch.nan
    entries = torch.arange(7, 27)
    pool.write_entries(0, entries, k, v)
    flat = pool.flat_index(entries)
    for found, given in ((pool.keys(0, flat), k), (pool.values(0, flat), v)):
        rows = found.view(2, 20, 32).transpose(0, 1)
        step = given.abs().amax(-1, keepdim=True) / 127
        right = (rows - given).abs() <= 0.5001 * step
        assert torch.equal(right.all(-1), ~given.isnan().any(-1))
        assert torch.equal(rows.isnan(), given.isnan()), "a NaN spoils its own row only"
    pool.clear([0, 1])
    assert not pool.values(0, flat).any()


def test_int8_is_for_cpus() -> None:
    config = EngineConfig(kv_cache_dtype="int8")
    assert kv_dtype_of(config, torch.bfloat16, CPU) == torch.int8
    with pytest.raises(ConfigError, match=r'int8 are read on CPUs only.*Use "fp8_e4m3"'):
        kv_dtype_of(config, torch.bfloat16, torch.device("meta"))


@pytest.mark.parametrize("device", [CPU, torch.device("meta")])
def test_beside_weights_of_8_bits_and_fewer_keys_and_values_have_16_on_every_device(device: torch.device) -> None:
    for weights in ("int8", "int4"):
        config = EngineConfig(weight_dtype=weights)  # type: ignore[arg-type]
        assert kv_dtype_of(config, torch.float32, device) == torch.bfloat16
        for dtype in (torch.bfloat16, torch.float16):
            assert kv_dtype_of(config, dtype, device) == dtype
        assert kv_dtype_of(replace(config, kv_cache_dtype="float32"), torch.float32, device) == torch.float32
    assert kv_dtype_of(EngineConfig(), torch.float32, device) == torch.float32


def test_a_page_takes_half_the_bytes() -> None:
    config = model_shape(4, 2, 32, layers=3)
    assert kv_dtype_of(EngineConfig(kv_cache_dtype="fp8_e4m3"), torch.bfloat16, torch.device("cpu")) == FP8
    assert kv_dtype_of(EngineConfig(), torch.bfloat16, torch.device("cpu")) == torch.bfloat16
    wide, narrow = (KVPool.bytes_per_page(config, 64, dtype) for dtype in (torch.bfloat16, FP8))
    assert wide == 2 * narrow
    assert KVPool.bytes_per_page(config, 64, torch.int8) == narrow * 36 // 32, "32 numbers of a head, and a scale"


def test_verified_still_equals_autoregressive(agreeing_folder: Path) -> None:
    model, tokenizer = loaded(agreeing_folder)
    config = EngineConfig(kv_cache_dtype="fp8_e4m3", page_size=16)
    prompts = [[(7 * i + 3 * j) % 300 for j in range(length)] for i, length in enumerate((1, 9, 33, 70))]
    outputs = [
        [
            one.token_ids
            for one in run(
                Engine(model, tokenizer, config),
                requests_of(prompts, SamplingParams(max_tokens=24, strategy=strategy, temperature=t, ignore_eos=True)),
            )
        ]
        for t in (0.0, 1.0)
        for strategy in ("verified", "autoregressive")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[2] == outputs[3]
    plain = run(Engine(model, tokenizer), requests_of(prompts, SamplingParams(max_tokens=24, ignore_eos=True)))
    assert [one.token_ids for one in plain] != outputs[0]  # the 8-bit pool does change outputs


def test_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype"):
        EngineConfig(kv_cache_dtype="fp8")  # type: ignore[arg-type]
