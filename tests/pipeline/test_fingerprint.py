"""The fingerprint: settings that change an output, and older records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pipeline.codec import EngineConfig, SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint_fields
from pipeline.settings.pools import PoolConfig


def test_the_fingerprint_covers_what_changes_the_output_and_nothing_else() -> None:
    base = RunConfig(input="x", output="y")
    same = RunConfig(input="z", output="o", actors=4, num_threads=2, unit_rows=3, units_in_flight=5, device="cpu",
                     retry_failed=True, max_failed_fraction=0.5, max_row_deaths=4, max_engine_deaths=1)  # fmt: skip
    assert fingerprint_fields(same) == fingerprint_fields(base)
    for change in (
        {"seed": 1}, {"chat": True}, {"columns": ["a"]}, {"sampling": SamplingParams(top_k=1)},
        {"prompt_column": "q"}, {"limit": 3}, {"include_token_ids": False}, {"prompt_template": "{{ q }}"},
        {"on_long_prompt": "truncate_left"}, {"tools_column": "t"},
        {"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs_column": "k"},
        {"sampling": SamplingParams(bad_words="no")}, {"sampling": SamplingParams(logit_bias={3: 1.0})},
    ):  # fmt: skip
        assert fingerprint_fields(RunConfig(input="x", output="y", **change)) != fingerprint_fields(base)


def test_the_fingerprint_says_what_auto_stands_for_beside_narrow_weights() -> None:
    """Outputs from before, whose keys and values were in float32, are not continued in bfloat16."""

    def recorded(**engine: Any) -> Any:
        return fingerprint_fields(RunConfig(input="x", output="y", engine=EngineConfig(**engine)))

    assert recorded(weight_dtype="int8")["engine.kv_cache_dtype"] == "bfloat16"
    assert recorded(weight_dtype="int8", kv_cache_dtype="bfloat16") == recorded(weight_dtype="int8")
    assert recorded(weight_dtype="int8", kv_cache_dtype="float32") != recorded(weight_dtype="int8")
    assert recorded()["engine.kv_cache_dtype"] == "auto"
    half = RunConfig(input="x", output="y", dtype="float16", engine=EngineConfig(weight_dtype="int8"))
    assert fingerprint_fields(half)["engine.kv_cache_dtype"] == "auto", "as it was, and so are its rows"


def test_a_pool_may_set_every_engine_field_that_is_not_in_the_fingerprint_and_no_other() -> None:
    whole = RunConfig(input="x", output="y", engine=EngineConfig(weight_dtype="int8"))  # which has all fields
    bearing = {
        name.removeprefix("engine.").partition(".")[0]
        for name in fingerprint_fields(whole)
        if name.startswith("engine.")
    }
    for name in (f.name for f in fields(EngineConfig)):
        refused = name in bearing or name in ("seed", "trace", "smoothing")  # the last is part of the model
        if refused:
            with pytest.raises(ConfigError, match="bears on tokens"):
                PoolConfig(engine={name: 1})
        else:
            PoolConfig(engine={name: 1})
