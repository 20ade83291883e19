"""Values of the sampler's features that change tokens: each alone, and random ones together."""

from __future__ import annotations

import random
from typing import Any

from wedlm_core.decoding.parameters import OPTIONAL

FEATURES: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.2},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": tuple(range(20, 200)), "stop": ("e", "a")},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "presence_penalty": {"presence_penalty": 1.9},
    "frequency_penalty": {"frequency_penalty": 1.7},
    "negative_penalties": {"frequency_penalty": -1.1, "presence_penalty": -0.7, "repetition_penalty": 0.7},
    "logit_bias": {"logit_bias": {i: (6.0 if i % 3 else -100.0) for i in range(10, 90)}},
    "suppress_tokens": {"suppress_tokens": list(range(12, 90, 2))},
    "bad_words": {"bad_words": ["e", "th", "1", "2", "the", "an", "7, 8"]},
    "logprobs": {"logprobs": 5},
    "all": {
        "min_p": 0.01, "min_tokens": 5, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3,
        "logit_bias": {40: 3.0, 41: -50.0}, "bad_words": ["e", "3, 4", "ing"], "logprobs": 3, "top_k": 60,
    },
}  # fmt: skip
"""Fields of ``SamplingParams`` by the name of their feature."""


def uses_history(fields: dict[str, Any]) -> bool:
    """Whether these fields are for strategies that verify, or decode token by token, alone."""
    history = {one.field for one in OPTIONAL if getattr(one, "reads_history", False)} | {"logprobs"}
    return bool(history & fields.keys())


def random_features(rng: random.Random, strategy: str, max_tokens: int) -> dict[str, Any]:
    """A few features that the strategy supports."""
    fields: dict[str, Any] = {}
    for name in rng.sample(sorted(FEATURES), rng.choice([1, 2])):
        if strategy in ("verified", "autoregressive") or not uses_history(FEATURES[name]):
            fields |= FEATURES[name]
    return fields | ({"min_tokens": min(fields["min_tokens"], max_tokens)} if "min_tokens" in fields else {})
