"""Faults of the released engine that this one must not have, one test each or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from testing.engine.engines import requests_of, run
from testing.engine.oracle import autoregressive, reference
from wedlm_core import LLM, CapacityError, EngineConfig, FinishReason, RequestError, SamplingParams
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

MASK = 2
STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")
REFERENCE = SamplingParams(
    max_tokens=24, strategy="reference", window_size=6, entropy_threshold=2.5, ignore_eos=True, temperature=0.0
)
VERIFIED = replace(REFERENCE, strategy="verified")


@pytest.fixture(scope="module")
def model(qwen3_folder: Path) -> Decoder:
    return load_model(qwen3_folder)


@pytest.fixture(scope="module")
def tokenizer(qwen3_folder: Path) -> Tokenizer:
    return Tokenizer.load(qwen3_folder)


@pytest.fixture(scope="module")
def llm(qwen3_folder: Path) -> LLM:
    return LLM(str(qwen3_folder), device="cpu", config=EngineConfig(page_size=8))


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(11 * i * i + 5 * i + 3 * salt + 4) % 330 for i in range(length)]


def check_against_oracle(model: Decoder, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    for params in (REFERENCE, VERIFIED):
        for found, prompt in zip(run(engine, requests_of(prompts, params)), prompts, strict=True):
            if params is REFERENCE:
                assert found.token_ids == reference(model, prompt, params, MASK).token_ids
            else:
                assert found.token_ids == autoregressive(model, prompt, params).token_ids


def test_prompt_length_is_a_multiple_of_the_page_size(model: Decoder, tokenizer: Tokenizer) -> None:
    engine = Engine(model, tokenizer, EngineConfig(page_size=8))
    prompts = [prompt_of(length, length) for length in (8, 16, 32, 64)]
    check_against_oracle(model, engine, prompts)
    # The second time every page of the prompt is cached, and there is still a row to decode from.
    check_against_oracle(model, engine, prompts)
    again = run(engine, requests_of(prompts, REFERENCE))
    assert [g.stats.cached_prompt_tokens for g in again] == [8, 16, 32, 64]


def test_prefix_pages_are_never_wrong_or_stale(model: Decoder, tokenizer: Tokenizer) -> None:
    """Prompts that share some pages and differ in others, through a pool that evicts all the time."""
    engine = Engine(model, tokenizer, EngineConfig(page_size=4, num_pages=24))
    base = prompt_of(24)
    prompts = [base[:cut] + prompt_of(20 - cut, salt) for salt in range(3) for cut in (4, 10, 12, 16)] + [base] * 3
    for _ in range(2):
        check_against_oracle(model, engine, prompts)
    # A continued conversation: the generated tokens are a prefix now.
    (first,) = run(engine, requests_of([base], REFERENCE))
    (second,) = run(engine, requests_of([[*base, *first.token_ids]], REFERENCE))
    assert second.stats.cached_prompt_tokens > len(base)
    assert second.token_ids == reference(model, [*base, *first.token_ids], REFERENCE, MASK).token_ids


def test_page_budget_is_too_small(model: Decoder, tokenizer: Tokenizer) -> None:
    engine = Engine(model, tokenizer, EngineConfig(page_size=4, num_pages=4))
    fits, too_long = requests_of([prompt_of(1), prompt_of(9)], replace(VERIFIED, max_tokens=2, window_size=3))
    with pytest.raises(CapacityError, match=r"pool holds 16 tokens.*num_pages"):
        engine.add(too_long)
    assert not engine.has_work()
    (found,) = run(engine, [fits])
    assert len(found.token_ids) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_prompt_and_max_tokens_reach_the_limit_of_the_model(
    model: Decoder, tokenizer: Tokenizer, strategy: str
) -> None:
    limit = model.config.max_position_embeddings
    engine = Engine(model, tokenizer, EngineConfig(max_window=8))
    params = replace(REFERENCE, strategy=strategy, window_size=8)
    (found,) = run(engine, requests_of([prompt_of(limit - 24)], params))
    assert len(found.token_ids) == 24
    (request,) = requests_of([prompt_of(limit - 23)], params)
    with pytest.raises(RequestError, match=f"489 \\+ 24.*max_model_len = {limit}.*Shorten"):
        engine.add(request)


def test_statistics_cover_the_last_forward_and_not_the_overshoot(model: Decoder, tokenizer: Tokenizer) -> None:
    engine = Engine(model, tokenizer, EngineConfig(trace=True))
    for max_tokens in range(1, 14):
        params = replace(REFERENCE, max_tokens=max_tokens, entropy_threshold=9.0, position_penalty=0.0)
        (found,) = run(engine, requests_of([prompt_of(7)], params))
        steps = reference(model, prompt_of(7), params, MASK).steps
        stats = found.stats
        # A threshold that everything passes: 6 tokens a forward, after one that fills the first window.
        assert stats.generated_tokens == max_tokens == len(found.token_ids)
        assert stats.decode_forwards == len(steps) == 1 + -(-max_tokens // 6)
        assert stats.rows_forwarded == sum(step["window_size"] for step in steps) == 6 + 12 * (len(steps) - 1)
        assert sum(n * count for n, count in enumerate(stats.commit_histogram)) == max_tokens
        assert sum(stats.commit_histogram) == stats.decode_forwards
        assert stats.tokens_per_forward == max_tokens / stats.decode_forwards
        assert stats.prefix_cacheability == max_tokens / stats.rows_forwarded
        filled = [e for step in steps for e, i in zip(step["entropies"], range(99), strict=False)
                  if i in step["fill_indices"]][:max_tokens]  # fmt: skip
        assert stats.mean_entropy == pytest.approx(sum(filled) / max_tokens, abs=1e-4)
        assert stats.max_entropy == pytest.approx(max(filled), abs=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_max_tokens_of_zero(llm: LLM, strategy: str) -> None:
    empty, one = llm.generate(["Hello", "Hello"], [replace(VERIFIED, strategy=strategy, max_tokens=n) for n in (0, 1)])
    assert (empty.text, empty.token_ids, empty.finish_reason) == ("", (), FinishReason.LENGTH)
    assert empty.prompt_tokens > 0
    assert empty.stats.decode_forwards == 0
    assert len(one.token_ids) == 1


def test_parameters_and_prompts_are_not_mutated(llm: LLM) -> None:
    prompts: list[object] = ["Hello", [5, 6, 7]]
    stops, ids = ["zzz"], [300]
    params = SamplingParams(max_tokens=5, stop=stops, stop_token_ids=ids, temperature=0.9, n=2)
    before = repr(params)
    first = llm.generate(prompts, params)  # type: ignore[arg-type]
    assert repr(params) == before
    assert prompts == ["Hello", [5, 6, 7]]
    assert (stops, ids) == (["zzz"], [300])
    assert len(first) == 4
    with pytest.raises(AttributeError):
        params.max_tokens = 6  # type: ignore[misc]
    stops.append("later")
    assert params.stop == ("zzz",)


@pytest.mark.parametrize("strategy", ["verified", "autoregressive", "reference", "streaming"])
def test_stop_strings_straddle_tokens(llm: LLM, strategy: str) -> None:
    """Every substring of the free text as a stop string: cut at its first occurrence, wherever tokens end."""
    params = replace(VERIFIED, strategy=strategy, max_tokens=16, temperature=1.0, seed=4)
    (free,) = llm.generate("Hello", params)
    pieces = [llm.tokenizer.decode([t]) for t in free.token_ids]
    assert len(pieces) > 4
    straddling = 0
    for start in range(0, len(free.text) - 3, 2):
        stop = free.text[start : start + 3]
        if "\ufffd" in stop:
            continue
        (found,) = llm.generate("Hello", replace(params, stop=stop))
        assert found.text == free.text[: free.text.index(stop)]
        assert found.finish_reason == FinishReason.STOP
        assert found.token_ids == free.token_ids[: len(found.token_ids)]
        assert stop in llm.tokenizer.decode(found.token_ids)
        assert stop not in llm.tokenizer.decode(found.token_ids[:-1])
        assert found.stats.generated_tokens == len(found.token_ids)
        straddling += not any(stop in piece for piece in pieces)
    assert straddling > 0


def test_a_stop_string_in_the_prompt_does_not_stop(llm: LLM) -> None:
    prompt = "Hello END of it"
    free, stopped = llm.generate([prompt, prompt], [VERIFIED, replace(VERIFIED, stop="END")])
    assert stopped.token_ids == free.token_ids


def test_streaming_gives_whole_characters(llm: LLM) -> None:
    """Random weights give broken bytes too; streamed pieces are never taken back: they join to the text."""
    for seed in range(6):
        params = SamplingParams(max_tokens=40, temperature=1.3, seed=seed, ignore_eos=True, stop="qq")
        deltas = list(llm.stream("Grüße 😀", params))
        final = deltas[-1].generation
        assert final is not None
        assert all(d.generation is None for d in deltas[:-1])
        assert "".join(d.text for d in deltas) == final.text
        assert tuple(t for d in deltas for t in d.token_ids) == final.token_ids
        assert final.token_ids == llm.generate("Grüße 😀", params)[0].token_ids


def test_two_engines_in_one_process(model: Decoder, tokenizer: Tokenizer, qwen25_folder: Path) -> None:
    """Two engines, of one model and of another, advanced in turn, disturb each other in nothing."""
    other = load_model(qwen25_folder)
    engines = [
        Engine(model, tokenizer, EngineConfig(page_size=4)),
        Engine(model, tokenizer, EngineConfig(page_size=16, seed=9)),
        Engine(other, Tokenizer.load(qwen25_folder)),
    ]
    requests = requests_of([prompt_of(9, i) for i in range(5)], replace(VERIFIED, temperature=0.7))
    alone = [[g.token_ids for g in run(engine, requests)] for engine in engines]
    found: list[dict[str, tuple[int, ...]]] = [{} for _ in engines]
    for engine in engines:
        for request in requests:
            engine.add(request)
    while any(engine.has_work() for engine in engines):
        for engine, results in zip(engines, found, strict=True):
            results.update((g.request_id, g.token_ids) for g in engine.step())
    assert [[results[r.request_id] for r in requests] for results in found] == alone
