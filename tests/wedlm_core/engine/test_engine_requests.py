"""Requests and results of the engine: refusals, samples, seeds, streams, statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.engine.engines import loaded, requests_of, run
from testing.engine.oracle import causal_logits
from wedlm_core import LLM, EngineConfig, FinishReason, RequestError, SamplingParams
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Request

FREE = SamplingParams(max_tokens=12, temperature=0.8, ignore_eos=True, window_size=4)


@pytest.fixture(scope="module")
def llm(agreeing_folder: Path) -> LLM:
    return LLM(str(agreeing_folder), device="cpu", config=EngineConfig(max_window=8))


def test_an_id_in_use_is_refused(llm: LLM) -> None:
    request = Request(request_id="a", prompt_token_ids=(5,), params=FREE)
    llm.engine.add(request)
    with pytest.raises(RequestError, match="request_id='a'"):
        llm.engine.add(request)
    llm.engine.abort("a")
    llm.engine.abort("a")
    assert not llm.engine.has_work()
    assert llm.engine.pages.num_free == llm.engine.pages.num_pages


def test_samples_of_a_prompt_differ_and_come_again(llm: LLM) -> None:
    params = replace(FREE, n=4, seed=11)
    first = llm.generate(["Hello", "World"], params)
    assert [g.sample_index for g in first] == [0, 1, 2, 3] * 2
    assert len({g.token_ids for g in first[:4]}) == 4
    assert [g.token_ids for g in llm.generate(["Hello", "World"], params)] == [g.token_ids for g in first]
    alone = llm.generate("World", replace(params, n=1))
    assert alone[0].token_ids == first[4].token_ids, "sample 0 has the seed itself"
    assert len({g.seed for g in first[:4]}) == 4


def test_requests_without_a_seed_differ(llm: LLM) -> None:
    a, b = llm.generate(["Hello", "Hello"], FREE)
    assert a.token_ids != b.token_ids


def test_logprobs_are_those_of_the_unfiltered_model(agreeing_folder: Path) -> None:
    model, tokenizer = loaded(agreeing_folder)
    engine = Engine(model, tokenizer)
    prompt = [5, 77, 300]
    params = replace(FREE, logprobs=True, top_k=9, temperature=0.5)
    for strategy in ("verified", "autoregressive"):
        (found,) = run(engine, requests_of([prompt], replace(params, strategy=strategy)))
        ids = [*prompt, *found.token_ids]
        log_TV = causal_logits(model, ids, range(len(ids))).log_softmax(-1)
        expected = [float(log_TV[t - 1, ids[t]]) for t in range(len(prompt), len(ids))]
        assert found.logprobs == pytest.approx(expected, abs=1e-4)
        assert found.stats.mean_logprob == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def test_the_mask_id_may_be_emitted_and_forwarded(agreeing_folder: Path) -> None:
    """Masks are tracked by flags: an output that contains the mask id is decoded like any other."""
    model = load_model(agreeing_folder)
    tokenizer = Tokenizer.load(agreeing_folder)
    prompts = [[i, 2, 40 + i] for i in range(5, 25)]
    plain = replace(FREE, temperature=1.0, strategy="autoregressive")
    tokens = [t for g in run(Engine(model, tokenizer), requests_of(prompts, plain)) for t in g.token_ids]
    # As likely as the most frequent token from now on.
    model.lm_head.weight[2] = model.lm_head.weight[max(set(tokens), key=tokens.count)]
    engine = Engine(model, tokenizer)  # an engine takes weights as they are
    expected = run(engine, requests_of(prompts, plain))
    assert any(2 in g.token_ids for g in expected)
    found = run(engine, requests_of(prompts, replace(plain, strategy="verified")))
    assert [g.token_ids for g in found] == [g.token_ids for g in expected]


def test_a_stop_token_is_kept_and_ends_the_text(llm: LLM) -> None:
    (free,) = llm.generate("Hello", replace(FREE, seed=3))
    for place in (0, 5, 11):
        stop = free.token_ids[place]
        (found,) = llm.generate("Hello", replace(FREE, seed=3, stop_token_ids=[stop]))
        assert found.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert found.finish_reason == FinishReason.STOP
        assert found.text == llm.tokenizer.decode(found.token_ids)


def test_more_stop_tokens_than_the_device_holds(llm: LLM) -> None:
    (free,) = llm.generate("Hello", replace(FREE, seed=3))
    unused = [i for i in range(300) if i not in free.token_ids][:40]
    (found,) = llm.generate("Hello", replace(FREE, seed=3, stop_token_ids=[*unused, free.token_ids[6]]))
    assert found.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[6]) + 1]


def test_streams_may_be_interleaved_with_each_other_and_with_a_batch(llm: LLM) -> None:
    params = [replace(FREE, seed=s) for s in range(3)]
    expected = [llm.generate("Hello", p)[0] for p in params]
    streams = [llm.stream("Hello", p) for p in params]
    texts = ["", "", ""]
    finals: list[Any] = [None] * 3
    for i, stream in enumerate(streams):
        texts[i] += next(stream).text
    (beside,) = llm.generate("Hello", params[1])
    assert beside.token_ids == expected[1].token_ids
    for i, stream in enumerate(streams):
        for delta in stream:
            texts[i] += delta.text
            finals[i] = delta.generation or finals[i]
    assert texts == [g.text for g in expected]
    assert [g.token_ids for g in finals] == [g.token_ids for g in expected]
    assert not llm.engine.has_work()


def test_a_stream_left_early_frees_what_it_held(llm: LLM) -> None:
    stream = llm.stream("Hello", replace(FREE, max_tokens=100))
    next(stream)
    stream.close()
    assert not llm.engine.has_work()
    assert llm.engine.pages.num_free == llm.engine.pages.num_pages
