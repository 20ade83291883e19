"""The keyword arguments of ``LLM`` are the fields of ``EngineConfig``, with their types."""

from __future__ import annotations

from typing import get_type_hints

from wedlm_core.config import EngineConfig, EngineFields


def test_each_field_is_an_argument_of_its_type() -> None:
    configured, named = get_type_hints(EngineConfig), get_type_hints(EngineFields)
    assert named.pop("streaming") != configured.pop("streaming"), "a mapping of its fields, too"
    assert named == configured
