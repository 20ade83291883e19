"""Penalties, biases, bans and the most likely tokens: ``verified`` equals ``autoregressive`` and the oracle.

As in ``test_engine_verified.py``: no tolerance between the strategies. Drafts of a forward count for the rows after
them, so a penalty sees the same tokens as token by token.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from testing.engine.engines import COST, as_verified, loaded, plain_decoder, requests_of, run
from testing.engine.features import FEATURES, random_features, uses_history
from testing.engine.oracle import autoregressive, causal_logits
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.stop_strings import check_words
from wedlm_core.engine import Engine
from wedlm_core.errors import RequestError
from wedlm_core.model.sources import resolve
from wedlm_core.types import Generation, Request, SamplingParams, Strategy

TIGHT = {"page_size": 4, "prefill_chunk": 5, "max_batch_rows": 99, "num_pages": 120}
ENGINES: dict[str, dict[str, Any]] = {
    "kernels": TIGHT,
    "by torch": {**TIGHT, "logits_chunk_rows": 7},
    "overlapping": {**TIGHT, "overlap": True},
    "traced": {**TIGHT, "trace": True},
}
COUNT = 10


@cache
def engine_of(folder: Path, name: str = "roomy") -> Engine:
    with plain_decoder() if name == "by torch" else nullcontext():
        return Engine(*loaded(folder), EngineConfig(max_window=16, step_cost=COST, **ENGINES.get(name, {})))


@pytest.fixture(params=["tiny", "agreeing"])
def folder(request: pytest.FixtureRequest) -> Path:
    return resolve("tiny") if request.param == "tiny" else request.getfixturevalue("agreeing_folder")


def requests_with(folder: Path, fields: dict[str, Any], **common: Any) -> list[Request]:
    """Prompts of many lengths, greedy and at temperature 1, beside plain ones."""
    rng = random.Random(3)
    texts = [f"Count from {rng.randint(1, 80)} to {rng.randint(81, 99)}." for _ in range(COUNT)]
    prompts = [loaded(folder)[1].encode(text)[: rng.choice([1, 4, 13, 24])] for text in texts]
    base = SamplingParams(max_tokens=18, ignore_eos=True, logprobs=True, strategy="autoregressive", **common)
    params = [
        replace(base, temperature=(0.0, 1.0)[i % 2], **(fields if i % 5 < 4 else {}))  # one in five uses none
        for i in range(COUNT)
    ]
    return requests_of(prompts, params)


def assert_same(found: list[Generation], expected: list[Generation], *, nats: bool = True) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        if nats:
            assert ours.logprobs == theirs.logprobs
            assert ours.top_logprobs == theirs.top_logprobs


@cache
def without_any(folder: Path) -> list[Generation]:
    return run(engine_of(folder), requests_with(folder, {}))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", FEATURES)
def test_verified_equals_autoregressive(folder: Path, name: str) -> None:
    """Every way to run a step, fixed windows and automatic ones, batches of any size, chunked prefill."""
    requests = requests_with(folder, FEATURES[name])
    expected = run(engine_of(folder), requests)
    plain = without_any(folder)
    changed = [i for i in range(COUNT) if expected[i].token_ids != plain[i].token_ids]
    assert all(i % 5 < 4 for i in changed), "rows without the feature are unchanged"
    assert changed or name in ("logprobs", "min_p")
    for number, engine in enumerate(ENGINES):
        window, at_once = ((4, None), (16, 3), ("auto", None), (2, 1))[number]
        found = run(engine_of(folder, engine), as_verified(requests, window), at_once)
        # Torch adds in another order than the kernels: tokens agree, the last bits need not.
        assert_same(found, expected, nats=engine != "by torch")


@pytest.mark.parametrize("overlap", [False, True])
def test_verified_equals_autoregressive_under_page_pressure(agreeing_folder: Path, overlap: bool) -> None:
    requests = requests_with(agreeing_folder, FEATURES["all"])
    requests = [
        replace(r, prompt_token_ids=r.prompt_token_ids[:8], params=replace(r.params, max_tokens=44)) for r in requests
    ]
    small = EngineConfig(
        page_size=4, num_pages=23, max_batch_rows=400, prefill_chunk=5, max_window=16, step_cost=COST, overlap=overlap
    )
    found = run(Engine(*loaded(agreeing_folder), small), as_verified(requests, 4))
    assert_same(found, run(engine_of(agreeing_folder), requests))
    assert sum(g.stats.preemptions for g in found) > 0


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", [*FEATURES, "random"])
def test_autoregressive_equals_the_oracle(agreeing_folder: Path, name: str) -> None:
    model, tokenizer = loaded(agreeing_folder)
    rng = random.Random(1)
    requests = requests_with(agreeing_folder, FEATURES.get(name) or {})
    if name == "random":
        requests = [
            replace(r, params=replace(r.params, **random_features(rng, "verified", r.params.max_tokens)))
            for r in requests
        ]
    for request, found in zip(requests, run(engine_of(agreeing_folder), requests), strict=True):
        params = request.params
        words = check_words(tokenizer, tuple(params.bad_words or ()))
        plain = replace(params, stop=())
        expected = autoregressive(model, request.prompt_token_ids, plain, request.seed, bad_words=words)
        assert found.token_ids == expected.token_ids[: len(found.token_ids)]
        assert len(found.token_ids) == len(expected.token_ids) or params.stop


def test_what_each_feature_promises(folder: Path) -> None:
    """Not against another decoder: by its documentation."""
    tokenizer = loaded(folder)[1]

    def generate(**fields: Any) -> list[Generation]:
        return run(engine_of(folder), as_verified(requests_with(folder, fields, n=1), 8))

    early = generate(min_tokens=6, stop_token_ids=tuple(range(len(loaded(folder)[0].embed.weight) - 40)))
    assert {len(g.token_ids) for i, g in enumerate(early) if i % 5 < 4} <= {*range(7, 19)}
    for i, one in enumerate(generate(bad_words=["3", "e", "4, 5"])):
        words = check_words(tokenizer, ("3", "e", "4, 5"))
        runs = {one.token_ids[at : at + len(w)] for w in words for at in range(18)}
        assert not runs & set(words) or i % 5 == 4
    banned = dict.fromkeys(range(60), -100.0)
    for i, one in enumerate(generate(logit_bias=banned)):
        assert min(one.token_ids) >= 60 or i % 5 == 4
    most = [max(Counter(g.token_ids).values()) for g in generate(frequency_penalty=2.0, presence_penalty=2.0)]
    free = [max(Counter(g.token_ids).values()) for g in generate()]
    assert sum(most) < sum(free)


def test_a_stop_string_within_min_tokens_does_not_end_the_text(agreeing_folder: Path) -> None:
    free = run(engine_of(agreeing_folder), requests_with(agreeing_folder, {}))[0]
    piece = free.text[:3]
    params = SamplingParams(max_tokens=18, ignore_eos=True, stop=(piece,), window_size=4)
    prompt = requests_with(agreeing_folder, {})[0].prompt_token_ids
    (stopped,) = run(engine_of(agreeing_folder), requests_of([prompt], params))
    (going_on,) = run(engine_of(agreeing_folder), requests_of([prompt], replace(params, min_tokens=12)))
    assert stopped.text == ""
    assert len(going_on.token_ids) >= 12
    assert going_on.token_ids == free.token_ids[: len(going_on.token_ids)]


def test_the_most_likely_tokens_are_the_models_own(agreeing_folder: Path) -> None:
    """Whatever filters and penalties chose: of the unchanged distribution, equal ones by their ids."""
    requests = as_verified(requests_with(agreeing_folder, FEATURES["all"]), 4)
    model = loaded(agreeing_folder)[0]
    for request, found in zip(requests, run(engine_of(agreeing_folder), requests), strict=True):
        if not request.params.top_logprobs:
            assert found.top_logprobs is None
            continue
        assert found.top_logprobs is not None
        known = [*request.prompt_token_ids, *found.token_ids]
        log_TV = causal_logits(model, known, range(len(known))).log_softmax(-1)
        for place, top in enumerate(found.top_logprobs):
            row_V = log_TV[len(request.prompt_token_ids) - 1 + place]
            expected = row_V.topk(request.params.top_logprobs)
            assert [nats for _, nats in top] == pytest.approx(expected.values.tolist(), abs=1e-4)
            torch.testing.assert_close(row_V[[i for i, _ in top]], expected.values, atol=1e-4, rtol=0)
        view = found.outputs[0]
        assert view.logprobs is not None
        assert [set(one) - {token} <= {i for i, _ in top} for one, token, top in
                zip(view.logprobs, found.token_ids, found.top_logprobs, strict=True)] == [True] * 18  # fmt: skip
        assert view.cumulative_logprob == sum(found.logprobs or ())


@pytest.mark.parametrize("strategy", [s for s in Strategy if s not in (Strategy.VERIFIED, Strategy.AUTOREGRESSIVE)])
def test_strategies_without_verification_take_what_looks_at_one_position(
    agreeing_folder: Path, strategy: Strategy
) -> None:
    fields = {"min_p": 0.05, "min_tokens": 5, "logit_bias": dict.fromkeys(range(3, 60), -100.0)}
    params = SamplingParams(max_tokens=12, strategy=strategy, window_size=4, entropy_threshold=2.0, **fields)
    warm = replace(params, temperature=0.8)
    stops = replace(warm, stop_token_ids=tuple(range(60, 250)), min_tokens=5)
    found = run(engine_of(agreeing_folder), requests_of([[7, 8, 9]] * 3, [params, warm, stops]))
    assert all(not set(g.token_ids) & set(range(3, 60)) for g in found)
    assert len(found[2].token_ids) > 5
    for name, value in FEATURES["all"].items():
        if uses_history({name: value}):
            with pytest.raises(RequestError, match=f"{name}=.*strategy '{strategy}'.*Use strategy \"verified\""):
                replace(params, **{name: value})


def test_ids_and_words_that_the_model_does_not_have_are_refused(agreeing_folder: Path) -> None:
    engine = engine_of(agreeing_folder)
    for fields in ({"logit_bias": {336: 1.0}}, {"stop_token_ids": [336]}):
        (name,) = fields
        with pytest.raises(RequestError, match=f"{name}=336"):
            engine.add(Request(request_id="a", prompt_token_ids=(5,), params=SamplingParams(**fields)))
    assert not engine.has_work()
