"""DecoderCpu agrees with the plain decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testing.engine.engines import requests_of, run
from testing.engine.hidden_rows import TARGET_PROMPTS, Rows, model_of, observe
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.attention import attend
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
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
def test_narrow_weights_agree_with_the_plain_decoder(
    request: pytest.FixtureRequest, model: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            assert engine._runner.backend.name == ("compiled" if fast else "tiled")
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


@given(
    st.integers(1, 40), st.integers(1, 12), st.integers(0, 200), st.sampled_from([4, 8, 32, 30]),
    st.sampled_from([1, 2, 3]), st.sampled_from([2, 8, 16, 32, 64, 128]), st.integers(0, 99),
)  # fmt: skip
@example(rows=2, sequences=3, cached=1500, dim=64, group=2, page=64, seed=0)  # more keys than are fetched at once
@example(rows=1, sequences=4, cached=130, dim=32, group=1, page=64, seed=0)
@settings(max_examples=12, deadline=None)
def test_attention_equals_a_plain_softmax(
    rows: int, sequences: int, cached: int, dim: int, group: int, page: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    kv_heads, block = 2, min(page, 16)
    heads = kv_heads * group
    counts = rng.integers(1, rows + 1, sequences)
    context = rng.integers(0, cached + 1, sequences)
    starts = np.cumsum(counts) - counts
    depth = int((context + counts).max() - 1) // page + 1
    pages = rng.permutation(sequences * depth).reshape(sequences, depth)
    entries = sequences * depth * page
    keys = rng.standard_normal((kv_heads, entries // block, dim, block)).astype(np.float32)
    values = rng.standard_normal((kv_heads, entries, dim)).astype(np.float32)
    q = rng.standard_normal((int(counts.sum()), heads * dim)).astype(np.float32)
    out, width = np.zeros_like(q), -(-depth * page // 16) * 16
    scale = np.float32(dim**-0.5)
    narrow = [torch.from_numpy(x).bfloat16() for x in (keys, values)]
    keys, values = (x.float().numpy() for x in narrow)
    none = np.zeros((2, 0, 0), dtype=np.float32)
    attend(q, keys, values, *none, pages, starts, counts, context, page, scale, out, width, 0, sequences)
    bits, same = [x.view(torch.uint16).numpy() for x in narrow], np.zeros_like(out)
    attend(q, *bits, *none, pages, starts, counts, context, page, scale, same, width, 0, sequences)
    np.testing.assert_array_equal(same, out, "bfloat16 keys and values give the bits of the same numbers in float32")
    _check_softmax(q, keys, values, pages, page, starts, counts, context, out)
    # Eight bits: each key and value of a KV head at a scale of its own.
    byte_k, byte_v = (rng.integers(-127, 128, x.shape).astype(np.int8) for x in (keys, values))
    scales = rng.uniform(0.001, 0.03, (2, kv_heads, entries)).astype(np.float32)
    attend(q, byte_k, byte_v, *scales, pages, starts, counts, context, page, scale, out, width, 0, sequences)
    by_entry = scales[0].reshape(kv_heads, entries // block, 1, block)
    _check_softmax(q, byte_k * by_entry, byte_v * scales[1][..., None], pages, page, starts, counts, context, out)


def _check_softmax(  # type: ignore[no-untyped-def]
    q, keys, values, pages, page, starts, counts, context, out
) -> None:
    kv_heads, _, dim, _ = keys.shape
    heads = q.shape[1] // dim
    by_entry = keys.transpose(0, 1, 3, 2).reshape(kv_heads, -1, page, dim)
    scale = dim**-0.5
    for s in range(len(counts)):
        flat_k = by_entry[:, pages[s]].reshape(kv_heads, -1, dim).astype(np.float64)
        flat_v = values.reshape(kv_heads, -1, page, dim)[:, pages[s]].reshape(kv_heads, -1, dim).astype(np.float64)
        for r in range(counts[s]):
            seen, row = context[s] + r + 1, starts[s] + r
            for h in range(heads):
                kv = h * kv_heads // heads
                score = flat_k[kv, :seen] @ q[row, h * dim : (h + 1) * dim] * scale
                weight = np.exp(score - score.max())
                want = weight @ flat_v[kv, :seen] / weight.sum()
                np.testing.assert_allclose(out[row, h * dim : (h + 1) * dim], want, rtol=2e-5, atol=2e-5)
