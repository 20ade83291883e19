"""A row's result is bitwise independent of everything else in its forward, on a CPU.

So it is for weights in float32 and int8, and for keys and values in float32, bfloat16 and int8. A target request
runs alone in a default engine; then among other requests, in other configurations. Every hidden state of its rows, and
so every logit, entropy and log-probability, must have the same bits.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.engine.engines import requests_of
from testing.engine.hidden_rows import TARGET_PROMPTS, observe
from wedlm_core.config import EngineConfig
from wedlm_core.types import SamplingParams

STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=draw(st.integers(1, 12)),
        temperature=draw(st.sampled_from([0.0, 0.8])),
        top_k=draw(st.sampled_from([0, 20])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        ignore_eos=True,
        strategy=draw(st.sampled_from(STRATEGIES)),
        window_size=draw(st.sampled_from([1, 3, 8])),
        entropy_threshold=draw(st.sampled_from([None, 1.5, 3.0])),
    )


OTHERS = st.lists(st.tuples(st.lists(st.integers(0, 335), min_size=1, max_size=90), params()), max_size=6)
CONFIGS = st.builds(
    EngineConfig,
    page_size=st.sampled_from([1, 4, 16, 64, 128]),
    prefill_chunk=st.sampled_from([None, 1, 3, 7]),
    max_batch_rows=st.sampled_from([17, 50, 2048]),
    max_window=st.just(8),
    prefix_caching=st.booleans(),
    logits_chunk_rows=st.sampled_from([1, 5, 1024]),
    trace=st.just(True),
    weight_dtype=st.sampled_from(["auto", "auto", "int8"]),
    kv_cache_dtype=st.sampled_from(["auto", "bfloat16", "int8"]),
)


@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
@given(
    length=st.sampled_from(sorted(TARGET_PROMPTS)), target=params(), others=OTHERS, config=CONFIGS,
    place=st.integers(0, 6), seed=st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_row_has_the_same_bits_in_any_company(
    request: pytest.FixtureRequest, model: str, length: int, target: SamplingParams,
    others: list[tuple[list[int], SamplingParams]], config: EngineConfig, place: int, seed: int,
) -> None:  # fmt: skip
    folder = request.getfixturevalue(model)
    place = min(place, len(others))
    crowd = [*others[:place], (TARGET_PROMPTS[length], target), *others[place:]]
    requests = requests_of([p for p, _ in crowd], [q for _, q in crowd], [seed] * len(crowd))
    plain = EngineConfig(trace=True, weight_dtype=config.weight_dtype, kv_cache_dtype=config.kv_cache_dtype)
    (alone,), solo = observe(folder, [requests[place]], plain)
    together, rows = observe(folder, requests, config)
    found, name = together[place], str(place)

    assert found.token_ids == alone.token_ids
    assert found.trace == alone.trace, "entropies are compared bit for bit"
    assert found.stats.mean_logprob == alone.stats.mean_logprob
    mine = {key: value for key, value in rows.decode.items() if key[0] == name}
    assert mine.keys() == solo.decode.keys()
    for key, value in mine.items():
        assert torch.equal(value, solo.decode[key]), f"decode forward {key[1]}"
    for key, value in rows.prefill.items():
        if key[0] == name:
            assert torch.equal(value, solo.prefill[key]), f"prefill row {key[1]}"


def test_the_property_can_fail(qwen3_folder: Path) -> None:
    """Plain SDPA is not invariant: the same comparison sees it."""
    prompts = [TARGET_PROMPTS[65], *([(i * j) % 300 for i in range(1, 90 + 9 * j)] for j in range(1, 9))]
    requests = requests_of(prompts, SamplingParams(max_tokens=16, strategy="autoregressive", ignore_eos=True))
    config = EngineConfig(attention="sdpa", batch_invariant=False)
    _, solo = observe(qwen3_folder, requests[:1], config)
    _, rows = observe(qwen3_folder, requests, config)
    assert any(not torch.equal(value, rows.decode[key]) for key, value in solo.decode.items())
