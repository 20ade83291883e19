"""Requests and results of the engine: refusals, samples, seeds, streams, statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.engine.engines import requests_of, run
from testing.engine.oracle import causal_logits
from wedlm_core import LLM, ConfigError, EngineConfig, FinishReason, RequestError, SamplingParams, WeightsError
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Request

FREE = SamplingParams(max_tokens=12, temperature=0.8, ignore_eos=True, window_size=4)


@pytest.fixture(scope="module")
def llm(agreeing_folder: Path) -> LLM:
    return LLM(str(agreeing_folder), device="cpu", config=EngineConfig(max_window=8))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": -1}, "max_tokens=-1: an integer of 0 or more"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_p": 0.0}, "top_p=0.0: in \\(0, 1\\]"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k=-2"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n=0"),
        ({"stop": [""]}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": "12"}, "stop_token_ids"),
        ({"strategy": "fast"}, "strategy='fast': one of"),
        ({"window_size": 0}, "window_size=0"),
        ({"window_size": "wide"}, "window_size='wide'"),
        ({"entropy_threshold": -1.0}, "entropy_threshold"),
        ({"position_penalty": -0.1}, "position_penalty"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"logprobs": 101}, "logprobs"),
        ({"logprobs": True, "strategy": "reference"}, "logprobs"),
    ],
)
def test_bad_parameters_name_value_rule_and_remedy(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(**values)
    assert str(caught.value).endswith(".")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([5, 336], FREE, r"prompt_token_ids\[1\]=336: ids are in \[0, 336\)\. Use the tokenizer"),
        ([-1], FREE, r"prompt_token_ids\[0\]=-1"),
        ([5] * 501, FREE, r"501 \+ 12.*max_model_len = 512"),
        ([5], replace(FREE, window_size=9), "window_size=9: at most EngineConfig.max_window = 8"),
        ([True], FREE, "integer token ids"),
        ([1.0], FREE, "integer token ids"),
        (None, FREE, "a prompt is a string"),
    ],
)
def test_a_bad_request_is_refused_and_the_rest_unaffected(
    llm: LLM, prompt: Any, params: SamplingParams, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([[7, 8], prompt], [FREE, params])
    assert not llm.engine.has_work()
    assert llm.engine.pages.num_free == llm.engine.pages.num_pages
    assert len(llm.generate([[7, 8]], FREE)[0].token_ids) == 12


def test_an_id_in_use_is_refused(llm: LLM) -> None:
    request = Request(request_id="a", prompt_token_ids=(5,), params=FREE)
    llm.engine.add(request)
    with pytest.raises(RequestError, match="request_id='a'"):
        llm.engine.add(request)
    llm.engine.abort("a")
    llm.engine.abort("a")
    assert not llm.engine.has_work()
    assert llm.engine.pages.num_free == llm.engine.pages.num_pages


def test_parameters_must_match_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="params"):
        llm.generate(["a", "b"], [FREE])


def test_bad_places_and_kinds_are_config_errors(agreeing_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device='nowhere'"):
        LLM(str(agreeing_folder), device="nowhere")
    with pytest.raises(ConfigError, match="dtype='float7'"):
        LLM(str(agreeing_folder), device="cpu", dtype="float7")  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match=r"config\.json"):
        LLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    "values",
    [{"max_num_seqs": 0}, {"page_size": 24}, {"max_batch_rows": 10}, {"num_pages": 0}, {"batch_invariant": "maybe"}],
)
def test_bad_engine_configurations_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EngineConfig(**values)


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
    model = load_model(agreeing_folder)
    engine = Engine(model, Tokenizer.load(agreeing_folder))
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


def test_cached_prompt_tokens_are_counted(agreeing_folder: Path) -> None:
    engine = Engine(load_model(agreeing_folder), Tokenizer.load(agreeing_folder), EngineConfig(page_size=8))
    system = list(range(20, 60))
    requests = requests_of([[*system, i] for i in range(100, 103)], FREE)
    counts = [run(engine, [r])[0].stats.cached_prompt_tokens for r in requests]
    assert counts == [0, 40, 40]
    off = Engine(load_model(agreeing_folder), Tokenizer.load(agreeing_folder), EngineConfig(prefix_caching=False))
    assert [g.stats.cached_prompt_tokens for g in run(off, requests)] == [0, 0, 0]


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (found,) = llm.chat(messages, replace(FREE, seed=1))
    (plain,) = llm.generate("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", replace(FREE, seed=1))
    assert found.token_ids == plain.token_ids
    assert len(llm.chat([messages, messages], FREE)) == 2
    assert messages == [{"role": "user", "content": "Hi"}]
