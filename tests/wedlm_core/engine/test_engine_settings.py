"""Random combinations of sampling settings at a real vocabulary: ``verified`` is ``autoregressive``, batched is alone.

No tolerance: every token, reason, log-probability and likely token is equal.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from testing.engine.engines import COST, requests_of, run
from testing.engine.features import random_features
from testing.engine.models import random_decoder
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

VOCABULARY = 151_936
FILTERS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.6, 1.0, 1.7), "top_k": (0, 1, 20, 5_000), "top_p": (1.0, 1e-6, 0.8, 0.999)
}  # fmt: skip
GRAMMARS: tuple[Any, ...] = (None, None, {"regex": "[0-9 ]{20,30}"}, {"choice": ["one two three", "one two four"]})


@cache
def engine() -> Engine:
    model = random_decoder(qwen3=True, seed=5, sharpness=1.5, common=1.0, vocab=VOCABULARY)
    return Engine(model, Tokenizer.load(resolve("tiny")), EngineConfig(page_size=4, max_window=8, step_cost=COST))


def random_requests(rng: random.Random, count: int) -> list[Request]:
    chosen, prompts = [], []
    for _ in range(count):
        fields: dict[str, Any] = {name: rng.choice(values) for name, values in FILTERS.items()}
        for _ in range(rng.randrange(3)):
            fields |= random_features(rng, "verified", 14)
        if grammar := rng.choice(GRAMMARS):  # it says where the output ends
            fields = {name: value for name, value in fields.items() if name not in ("min_tokens", "stop")}
            fields |= {"structured_outputs": grammar, "stop_token_ids": ()}
        chosen.append(SamplingParams(max_tokens=14, strategy="autoregressive", **fields))
        prompts.append([rng.randrange(4, 900) for _ in range(rng.choice((1, 5, 9)))])
    return requests_of(prompts, chosen)


def facts(generation: Generation) -> tuple[Any, ...]:
    return generation.token_ids, generation.finish_reason, generation.logprobs, generation.top_logprobs


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_settings_give_the_same_verified_and_alone(seed: int) -> None:
    requests = random_requests(random.Random(seed), 5)
    expected = [facts(one) for one in run(engine(), requests)]
    assert [facts(one) for one in run(engine(), requests, at_once=1)] == expected
    accepted = 0
    for window, at_once in ((4, None), (8, 1), ("auto", 3)):
        verified = [replace(r, params=replace(r.params, strategy="verified", window_size=window)) for r in requests]
        found = run(engine(), verified, at_once)
        assert [facts(one) for one in found] == expected, (window, at_once)
        accepted += sum(one.stats.mask_drafts_accepted or 0 for one in found)
    assert accepted, "some steps commit several tokens"
