"""``verified`` equals ``autoregressive`` with the same seed: every token, reason and log-probability.

No tolerance. The autoregressive side runs in a roomy engine; the verified side in engines with pages of 4
tokens, prefill chunks of 5, a tight row budget, and (second test) a pool so small that it preempts.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.engine.engines import COST, as_verified, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

# Prompts of each: 380 in all.
MODELS = {
    "qwen3": 90,
    "qwen25": 90,
    "agreeing": 90,
    "tiny": 40,
    "qwen25-int8": 20,
    "tiny-int8": 20,
    "tiny-bfloat16": 20,
    "qwen25-narrow_kv": 20,
    "tiny-narrow_kv": 10,
    "tiny-int8_kv": 10,
}
TEMPERATURES = (0.0, 0.7, 1.0)
TIGHT = EngineConfig(
    max_num_seqs=64,
    page_size=4,
    num_pages=90,
    prefill_chunk=5,
    max_batch_rows=99,
    max_window=16,
    step_cost=COST,
)


def prompts_for(tokenizer: Tokenizer, vocab_size: int, count: int) -> list[list[int]]:
    """Random ids, texts, and runs that share prefixes or end on a page."""
    rng = random.Random(count)
    texts = [f"Count from {rng.randint(1, 80)} to {rng.randint(81, 99)}." for _ in range(count)]
    shared = [rng.randrange(vocab_size) for _ in range(20)]
    prompts = []
    for i in range(count):
        if i % 3 == 0:
            prompts.append(tokenizer.encode(texts[i])[:24])
        elif i % 3 == 1:
            prompts.append(shared[: rng.randint(1, 20)] + [rng.randrange(vocab_size) for _ in range(rng.randint(0, 4))])
        else:
            prompts.append([rng.randrange(vocab_size) for _ in range(rng.choice([1, 3, 4, 8, 13, 16]))])
    return prompts


def params_for(count: int, temperature: float) -> list[SamplingParams]:
    """Per-prompt lengths, filters and stops; everything but the strategy."""
    rng = random.Random(17)
    return [
        SamplingParams(
            max_tokens=rng.choice([1, 2, 4, 8]),
            temperature=temperature,
            top_k=rng.choice([0, 0, 5, 50]),
            top_p=rng.choice([1.0, 1.0, 0.9, 0.5]),
            stop_token_ids=rng.choice([(), (5, 7, 11), tuple(range(20, 90))]),
            ignore_eos=rng.random() < 0.5,
            logprobs=True,
            strategy="autoregressive",
        )
        for _ in range(count)
    ]


class Bench:
    """Both engines of a model, its requests, and their autoregressive outputs."""

    def __init__(self, folder: Path, count: int, *, rarely_agrees: bool, numbers: str) -> None:
        self.rarely_agrees = rarely_agrees
        dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
        weight_dtype = "int8" if numbers == "int8" else "auto"
        tokenizer = Tokenizer.load(folder)
        model = load_model(folder, dtype=dtype, weight_dtype=weight_dtype)
        kv: dict[str, Literal["bfloat16", "int8"]] = {"narrow_kv": "bfloat16", "int8_kv": "int8"}
        self.kv_cache_dtype: Literal["auto", "bfloat16", "int8"] = kv.get(numbers, "auto")
        self.roomy = Engine(model, tokenizer, EngineConfig(max_num_seqs=32, kv_cache_dtype=self.kv_cache_dtype))
        self.tight = Engine(model, tokenizer, replace(TIGHT, kv_cache_dtype=self.kv_cache_dtype))
        self.prompts = prompts_for(tokenizer, self.roomy.model_config.vocab_size, count)

    def requests(self, temperature: float) -> list[Request]:
        return requests_of(self.prompts, params_for(len(self.prompts), temperature))

    @cache  # noqa: B019 (one per module, and it lives as long as the tests)
    def expected(self, temperature: float) -> list[Generation]:
        return run(self.roomy, self.requests(temperature), at_once=32)


@pytest.fixture(scope="module", params=MODELS)
def bench(request: pytest.FixtureRequest) -> Bench:
    name = request.param
    shape, _, numbers = name.partition("-")
    folder = resolve("tiny") if shape == "tiny" else request.getfixturevalue(f"{shape}_folder")
    return Bench(folder, MODELS[name], rarely_agrees=name.startswith("qwen"), numbers=numbers)


def assert_same(ours: Generation, theirs: Generation) -> None:
    assert ours.token_ids == theirs.token_ids
    assert ours.finish_reason == theirs.finish_reason
    assert ours.text == theirs.text
    assert ours.logprobs == theirs.logprobs
    assert ours.stats.mean_logprob == pytest.approx(theirs.stats.mean_logprob)
    assert ours.stats.mean_entropy == pytest.approx(theirs.stats.mean_entropy)
    assert ours.stats.decode_forwards <= theirs.stats.decode_forwards


CASES = [*((w, n) for w in (1, 4, 16) for n in (1, 7, 32)), *(("auto", n) for n in (1, 7, 64))]


@pytest.mark.sweep(16)
@pytest.mark.parametrize(("window", "at_once"), CASES)
def test_verified_equals_autoregressive(bench: Bench, window: int | str, at_once: int) -> None:
    saved = cached = 0
    step = 4 if at_once == 1 else 1  # one after the other they take long; prompts of all kinds are left
    for temperature in TEMPERATURES:
        found = run(bench.tight, as_verified(bench.requests(temperature)[::step], window), at_once=at_once)
        for ours, theirs in zip(found, bench.expected(temperature)[::step], strict=True):
            assert_same(ours, theirs)
            cached += ours.stats.cached_prompt_tokens
            saved += theirs.stats.decode_forwards - ours.stats.decode_forwards
    assert cached > 0
    # A window of 1 proposes the next-token head's choice anyway; auto may find that no masks pay.
    assert saved > 0 or window in (1, "auto") or bench.rarely_agrees


def pressed_params(temperature: float) -> SamplingParams:
    return SamplingParams(
        max_tokens=44, temperature=temperature, ignore_eos=True, logprobs=True, strategy="autoregressive"
    )


@pytest.mark.sweep(6)
@pytest.mark.parametrize("window", [1, 4, 16, "auto"])
def test_verified_under_page_pressure(bench: Bench, window: int | str) -> None:
    """Outputs longer than admission's reserve, in a pool that holds a few of them."""
    config = EngineConfig(
        page_size=4, num_pages=23, max_batch_rows=400, prefill_chunk=5, max_window=16, step_cost=TIGHT.step_cost,
        kv_cache_dtype=bench.kv_cache_dtype,
    )  # fmt: skip
    small = Engine(bench.roomy._runner.model, bench.roomy.tokenizer, config)
    plain = [
        *requests_of([prompt[:8] for prompt in 2 * bench.prompts[:8]], pressed_params(0.0)),
        *requests_of([prompt[:8] for prompt in 2 * bench.prompts[-8:]], pressed_params(0.8)),
    ]
    plain = [replace(request, request_id=str(i)) for i, request in enumerate(plain)]
    found = run(small, as_verified(plain, window))
    for ours, theirs in zip(found, run(bench.roomy, plain), strict=True):
        assert_same(ours, theirs)
    assert sum(g.stats.preemptions for g in found) > 0


COSTS = st.builds(
    StepCost.linear,
    fixed=st.floats(0.1, 10.0),
    per_row=st.floats(0.001, 1.0),
    floor_rows=st.integers(1, 200),
)


@pytest.mark.sweep(4)
@given(cost=COSTS, seed=st.integers(0, 999), slots=st.sampled_from([3, 16, 64]))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_auto_equals_autoregressive_under_random_load(bench: Bench, cost: StepCost, seed: int, slots: int) -> None:
    """Requests arrive at random while others run; whatever rows are said to cost, the tokens are the same."""
    rng = random.Random(seed)
    config = EngineConfig(
        max_num_seqs=slots, max_window=16, step_cost=cost, max_batch_rows=300, kv_cache_dtype=bench.kv_cache_dtype
    )
    engine = Engine(bench.roomy._runner.model, bench.roomy.tokenizer, config)
    temperature = rng.choice(TEMPERATURES)
    requests = as_verified(bench.requests(temperature), "auto")
    done: dict[str, Generation] = {}
    waiting = requests[::-1]
    while waiting or engine.has_work():
        for _ in range(rng.choice([0, 0, 1, 3, 20])):
            if waiting:
                engine.add(waiting.pop())
        if engine.has_work():
            done.update((g.request_id, g) for g in engine.step())
    for request, theirs in zip(requests, bench.expected(temperature), strict=True):
        assert_same(done[request.request_id], theirs)
