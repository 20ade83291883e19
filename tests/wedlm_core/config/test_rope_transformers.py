"""Rotary tables and layer types of any ``config.json`` are those of transformers, or the configuration is refused."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
import transformers

from wedlm_core.config import ModelConfig
from wedlm_core.errors import ConfigError
from wedlm_core.model.rotary import rope_tables

POSITIONS = 50
ABSENT = object()
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2}  # fmt: skip
CONFIGS = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def some(choose: random.Random, choices: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    drawn = {name: choose.choice(values) for name, values in choices.items()}
    return {name: copy.deepcopy(value) for name, value in drawn.items() if value is not ABSENT}


def rope(choose: random.Random) -> dict[str, Any]:
    return some(choose, {
        "rope_type": (ABSENT, "default", "yarn", "yarn", "yarn"),
        "type": (ABSENT, ABSENT, "yarn", "default"),
        "rope_theta": (ABSENT, 1e6, 5000, 10000.0),
        "factor": (ABSENT, 2.0, 4, 1.0, None),
        "original_max_position_embeddings": (ABSENT, ABSENT, 16, 64, None),
        "attention_factor": (ABSENT, None, 1.2),
        "beta_fast": (ABSENT, ABSENT, None, 16.0, 1.0),
        "beta_slow": (ABSENT, ABSENT, None, 1, 4.0, 32),
        "mscale": (ABSENT, None, 0.7),
        "mscale_all_dim": (ABSENT, None, 0.5),
        "truncate": (ABSENT, ABSENT, True, False, None),
        "partial_rotary_factor": (ABSENT, ABSENT, ABSENT, 1.0, 0.5),
    })  # fmt: skip


def configuration(choose: random.Random) -> dict[str, Any]:
    return SIZES | some(choose, {
        "rope_parameters": (ABSENT, None, {}, rope(choose), rope(choose)),
        "rope_scaling": (ABSENT, ABSENT, None, {}, rope(choose)),
        "rope_theta": (ABSENT, 1e6, 20000),
        "max_position_embeddings": (ABSENT, 128),
        "original_max_position_embeddings": (ABSENT, ABSENT, 32),
        "head_dim": (ABSENT, 16),
        "layer_types": (ABSENT, ABSENT, ["full_attention"] * 2, ["full_attention", "sliding_attention"]),
        "use_sliding_window": (ABSENT, False, False, True),
        "max_window_layers": (ABSENT, 0, 2),
    })  # fmt: skip


def test_any_configuration_has_the_tables_of_transformers_or_is_refused() -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding  # takes a second: only where it is run

    choose, same, refused = random.Random(5), 0, 0
    for number in range(400):
        kind = ("qwen2", "qwen3")[number % 2]
        raw = configuration(choose)
        try:
            ours = ModelConfig.from_hf({"model_type": kind, **copy.deepcopy(raw)})
        except ConfigError:
            refused += 1
            continue
        try:
            theirs = CONFIGS[kind](**copy.deepcopy(raw))
            cos, sin = Qwen3RotaryEmbedding(theirs)(torch.zeros(1), torch.arange(POSITIONS)[None])
        except Exception:  # transformers refuses it
            continue
        for mine, whole in zip(rope_tables(ours, POSITIONS), (cos[0], sin[0]), strict=True):
            assert torch.equal(torch.cat((mine, mine), dim=-1), whole), raw
        assert set(theirs.layer_types) == {"full_attention"}, raw
        same += 1
    assert same > 80
    assert refused > 80


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": {**YARN, "factor": None}}, "^rope_scaling=.*yarn needs a factor"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "^rope_parameters=.*yarn needs a factor"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": None}}, "original_max_position_embeddings=None"),
        ({"rope_scaling": {**YARN, "truncate": None}}, "truncate=None"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "llama3"}}, "^rope_scaling="),
        ({"partial_rotary_factor": 0.5}, "^partial_rotary_factor=0.5"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "^layer_types=.*sliding windows"),
        ({"layer_types": ["full_attention"]}, "^layer_types=.*one for each of 2 layers"),
        ({"layer_types": "full_attention"}, "^layer_types="),
        ({"layer_types": [None, ["full_attention"]]}, "^layer_types="),
        ({"use_sliding_window": True}, "^use_sliding_window="),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig.from_hf({"model_type": "qwen3", **SIZES, **changes})
