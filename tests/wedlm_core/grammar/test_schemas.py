"""Schemas that would take the backend minutes, gigabytes or its stack are refused at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from wedlm_core.errors import RequestError
from wedlm_core.grammar.schemas import check_schema


def patterns(count: int) -> list[dict[str, Any]]:
    return [{"pattern": f"x{i}"} for i in range(count)]


def nested(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for part in patterns(count):
        schema = {"allOf": [schema, part]}
    return schema


def chain(count: int, **more: Any) -> dict[str, Any]:
    named = {
        str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}, **more}} for i in range(count)
    }
    return {"$ref": "#/$defs/0", "$defs": named | {str(count): {"const": 1}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"allOf": patterns(24)}, "at most 12 patterns for one text"),
        (nested(24), "at most 12 patterns"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": patterns(24)}}}, "at most 12 patterns"),
        ({"allOf": [{"properties": {"a": part}} for part in patterns(24)]}, "at most 12 patterns"),
        ({"allOf": [{"properties": {"a": patterns(1)[0]}}, *({"additionalProperties": p} for p in patterns(24))]},
         "at most 12 patterns"),
        ({"allOf": [{"items": {"$ref": f"#/$defs/{i}"}} for i in range(24)],
          "$defs": dict(zip(map(str, range(24)), patterns(24), strict=True))}, "at most 12 patterns"),
        ({"properties": {f"p{i}": {} for i in range(3000)}, "patternProperties": {"": {"enum": list(range(5000))}}},
         "in copies for all"),
        (chain(1000), "at most 400 schemas inside each other, references followed"),
        ({"type": "string", "foramt": "date"}, "nearly 'format'"),
    ],
)  # fmt: skip
def test_a_schema_beyond_a_limit_is_refused_at_once(schema: dict[str, Any], words: str) -> None:
    begin = time.process_time()
    with pytest.raises(RequestError, match=words):
        check_schema(schema)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": patterns(24)},
        chain(100),
        chain(100, back={"$ref": "#/$defs/0"}),
        {"properties": {f"p{i}": part for i, part in enumerate(patterns(24))}},
        {"allOf": [{"properties": {f"p{i}": part for i, part in enumerate(patterns(24))}}, {"required": ["p0"]}]},
        {"allOf": [{"$ref": "#/$defs/a"}] * 24, "$defs": {"a": patterns(1)[0]}},
        {"$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}, "b": patterns(1)[0]}}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "allOf": patterns(2)}}, "allOf": [{"$ref": "#/$defs/a"}]},
    ],
)
def test_patterns_of_other_texts_do_not_add_up(schema: dict[str, Any]) -> None:
    check_schema(schema)


def test_unions_of_many_parts_take_no_long_time() -> None:
    tags = [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(1000)]
    begin = time.process_time()
    assert "oneOf" not in check_schema({"oneOf": tags})
    assert "oneOf" in check_schema({"oneOf": [{"required": [f"a{n}"]} for n in range(1000)]}), "left to the backend"
    assert time.process_time() - begin < 5
