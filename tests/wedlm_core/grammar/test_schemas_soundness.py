"""Schemas whose outputs could pass the backend and not a validator: said more narrowly, or refused."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from testing.engine.grammar_oracle import accepts, compiler, tokenizer
from wedlm_core.errors import RequestError
from wedlm_core.grammar import Grammar
from wedlm_core.structured_outputs import StructuredOutputs

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def outputs(grammar: Grammar, count: int) -> list[str]:
    """Complete outputs of random walks."""
    rng, done = random.Random(1), []
    for _ in range(count):
        matcher, taken = grammar.matcher.deep_copy(), list[int]()
        while len(taken) < 60:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            token = int(rng.choice(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()))
            if matcher.is_stopped() or token == 2:
                done.append(tokenizer().decode(taken))
                break
            taken.append(token)
            matcher.consume_tokens([token])
    return done


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        ({"type": "string", "pattern": r"^\W$"}, '"쮞"', '"-"'),
        ({"type": "string", "pattern": r"^[^\w]$"}, '"é"', '"-"'),
        ({"type": "string", "pattern": r"^\D$"}, '"۳"', '"-"'),
        ({"type": "number", "minimum": 2, "exclusiveMinimum": 2.0, "maximum": 3}, "2", "2.5"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.5"),
        ({"type": "number", "minimum": -3.5, "allOf": [{"exclusiveMaximum": -3}]}, "-3.0", "-3.25"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "0." + "9" * 20, "0.999999"),
        ({"type": "number", "exclusiveMaximum": 1e2}, "99." + "9" * 20, "99.5"),
        ({"type": "number", "exclusiveMinimum": 1e-10}, "0.0000000001" + "0" * 20 + "1", "0.0000000002"),
        ({"type": "number", "exclusiveMinimum": -2.5}, "-2.4" + "9" * 20, "-2.25"),
        ({"type": "number", "exclusiveMinimum": 0}, "0." + "0" * 340 + "1", "0.001"),
        ({"type": "number", "exclusiveMaximum": 2**53}, "9007199254740991.5", "9007199254740990"),
        ({"exclusiveMinimum": 1000000}, "1000000." + "0" * 12 + "1", "1000001"),
        ({"type": "number", "multipleOf": 1.5}, "6559584202016260.5", "4.5"),
        ({"type": "number", "multipleOf": 0.25}, "4503599627370495.75", "-0.75"),
        ({"type": "string", "format": "hostname"}, f'"{".".join(["a" * 60] * 5)}"', f'"{".".join(["a" * 60] * 4)}"'),
        ({"type": "string", "format": "hostname"}, '"xn--X"', '"x-n.X1.a--b--c"'),
        ({"type": "string", "format": "hostname"}, '"a.XN--aa---o47jg78q"', '"localhost"'),
        ({"type": "string", "format": "date"}, '"2023-02-29"', '"2024-02-29"'),
        ({"type": "string", "format": "date"}, '"0000-01-01"', '"0001-01-31"'),
        ({"type": "string", "format": "date"}, '"1900-02-29"', '"2000-02-29"'),
        ({"type": "string", "format": "time"}, '"13:04:60Z"', '"13:04:59Z"'),
        ({"type": "array", "items": {"type": "string", "format": "date-time"}},
         '["2024-01-01T13:04:60Z"]', '["2024-01-01T13:04:59Z"]'),
    ],
)  # fmt: skip
def test_only_what_validators_take_is_an_output(schema: dict[str, Any], wrong: str, right: str) -> None:
    grammar = compiler().compile(StructuredOutputs(json=schema))
    assert accepts(grammar, right)
    assert not accepts(grammar, wrong)
    for text in outputs(grammar, 40):
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator, format_checker=CHECKER)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "number", "minimum": "2"}, "#/minimum='2': a number"),
        ({"type": "number", "minimum": 1e-25}, "22 decimals"),
        ({"type": "integer", "minimum": 10**25}, "rounded"),
        ({"const": 1e30}, "rounded"),
        ({"type": "integer", "exclusiveMaximum": -(2**53)}, "next to the bound"),
        ({"enum": ["x", {"price": 98.49919442923573}]}, "98.49919442923573.*15 significant digits.*Round it"),
        ({"type": "number", "maximum": 13320.139040138245}, "15 significant digits"),
        ({"enum": [{"a": [2**70]}]}, "rounded"),
        ({"type": "number", "multipleOf": 0.1}, "computes? in binary"),
        ({"type": "object", "required": 5}, "required"),
        ({"anyOf": 5}, "a list of schemas"),
        ({"properties": 5}, "an object of schemas"),
        ({"enum": ["\0x"]}, "control characters"),
        ({"type": "object", "properties": {"\1": {}}}, "control characters"),
        ({"enum": ["a\x7fb"]}, "control characters"),
        ({"type": "string", "pattern": r"^\pL$"}, "Python cannot read it"),
        ({"type": "string", "pattern": "^[[:alpha:]]$"}, "may read .* in different ways"),
        ({"type": "string", "pattern": "^[a-c&&b]$"}, "may read .* in different ways"),
        ({"type": "object", "patternProperties": {"^[a--b]$": {}}}, "may read .* in different ways"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "cannot be told apart"),
    ],
)
def test_what_the_backend_holds_in_another_way_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        compiler().compile(StructuredOutputs(json=schema))


def test_a_schema_inside_of_a_grammar_is_enforced_or_refused_too() -> None:
    fine = compiler().compile(StructuredOutputs(grammar='start: "x" j\nj: %json {"enum": [1, 2]}'))
    assert accepts(fine, "x2")
    dated = compiler().compile(StructuredOutputs(grammar='start: j\nj: %json {"format": "date", "type": "string"} ";"'))
    assert accepts(dated, '"2024-02-29";')
    assert not accepts(dated, '"2023-02-29";')
    named = compiler().compile(StructuredOutputs(grammar='start: j\nj: %json {"properties": {"a": {"type": "null"}}}'))
    assert accepts(named, '{"a":null,"b":1}')
    assert not accepts(named, '{"a":null,"\\u0061":1}'), "readers take the last of two fields of one name"
    with pytest.raises(RequestError, match="x-guidance"):
        compiler().compile(StructuredOutputs(grammar='start: j\nj: %json {"x-guidance": {"lenient": true}, "not": {}}'))


@pytest.mark.parametrize("tag", ["\n", "a/b", "\n/\"'\\[x]#\r\t- x", "é\U0001f600", ".*|(a", "\\n", "</think>"])
def test_the_answer_begins_behind_any_tag(tag: str) -> None:
    grammar = compiler().compile(StructuredOutputs(choice=["yes"], after=tag))
    assert accepts(grammar, f"so {tag}yes")
    assert not accepts(grammar, "so yes")
