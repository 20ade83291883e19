"""Configurations from plain data: unknown fields are named with the nearest known field, at any level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.codec import EngineConfig
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.settings.plain_data import build

PLACES = {"input": "x", "output": "y"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"max_tokens": 3}, "field='max_tokens'.*Did you mean 'sampling.max_tokens'"),
        ({"actor": 3}, "Did you mean 'actors'"),
        ({"actors_min": 3}, "Did you mean 'actors.min'"),
        ({"sampling": {"temprature": 1}}, "Did you mean 'sampling.temperature'"),
        ({"engine": {"unit_rows": 1}}, "field='engine.unit_rows'.*Did you mean 'unit_rows'"),
        ({"qqqqqq": 1}, "field='qqqqqq'.*Known: input, "),
        ({"sampling": 3}, "sampling=3: .*a mapping"),
        ({"sampling": {"max_tokens": -1}}, r"sampling\.max_tokens=-1"),
    ],
)
def test_what_is_wrong_is_named_with_its_level(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(RunConfig, {**PLACES, **raw}, root=RunConfig)


def test_nested_settings_may_be_left_empty_or_built_already() -> None:
    made = build(RunConfig, {**PLACES, "sampling": None, "engine": EngineConfig(max_num_seqs=3)}, root=RunConfig)
    assert made.engine.max_num_seqs == 3
    assert made.sampling == RunConfig(**PLACES).sampling


def test_a_field_that_is_missing_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Kind:
        needed: int

    with pytest.raises(ConfigError, match=r"needed.* Known fields: needed\."):
        build(Kind, {}, root=Kind)
