"""Schemas as people and tools write them: annotations, older drafts, references, unions: enforced, or refused."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from testing.engine import grammar_oracle
from testing.engine.grammar_oracle import compiler, tokenizer
from wedlm_core.errors import RequestError
from wedlm_core.grammar import Grammar
from wedlm_core.structured_outputs import StructuredOutputs

DRAFT = "http://json-schema.org/draft-{}/schema#"


def compiled(schema: Any) -> Grammar:
    return compiler().compile(StructuredOutputs(json=schema))


def accepts(grammar: Grammar, value: Any) -> bool:
    """Whether a value is a complete output."""
    return grammar_oracle.accepts(grammar, json.dumps(value))


def objects(*names: str) -> list[dict[str, Any]]:
    """All objects with some of these fields, in their order, with values 1 to 3."""
    fields = [[{}, *({name: value} for value in (1, 3, "x"))] for name in names]
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*fields)]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"$schema": DRAFT.format("04"), "type": "number", "minimum": 2, "exclusiveMinimum": True}, [1, 2, 2.5, 3]),
        ({"$schema": DRAFT.format("04"), "maximum": 2, "exclusiveMaximum": False}, [1, 2, 2.5]),
        ({"$schema": DRAFT.format("07"), "items": [{"type": "integer"}], "additionalItems": False},
         [[], [1], ["a"], [1, 1]]),
        ({"$schema": DRAFT.format("07"), "items": [{"type": "integer"}], "additionalItems": {"type": "null"}},
         [[1], [1, None], [1, 1]]),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, objects("a", "b")),
        ({"$schema": DRAFT.format("07"), "dependencies": {"a": {"required": ["b"]}}}, [*objects("a", "b"), 1]),
        ({"type": "object", "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}}, objects("a", "b")),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, objects("a", "b")),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}},
          "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}, {"required": ["b"]}]}, objects("a", "b")),
        ({"oneOf": [{"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 2}]}, [1, 2, 3, "a"]),
        ({"oneOf": [{"type": ["integer", "null"]}, {"enum": ["x", "y"]}]}, [1, None, "x", "z"]),
        ({"type": "object", "not": {"required": ["a"]}}, objects("a", "b")),
        ({"type": "object", "not": {"anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]}}, objects("a", "b", "c")),
        ({"not": {"type": ["string", "number"]}}, [1, "a", None, {}, []]),
        ({"not": {"enum": [None, True]}}, [None, True, False, 1]),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}, objects("a", "b")),
        ({"type": "object", "minProperties": 1, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
         objects("a", "b")),
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, ["", "a", "ab", "abc"]),
        ({"type": "integer", "format": "int32"}, [2**31 - 1, 2**31 + 1, -(2**31) - 1]),
        ({"$id": "http://x/y", "properties": {"a": {"$ref": "#/$defs/p%20q~1r"}, "b": {"$ref": "http://x/y#/$defs/z"}},
          "$defs": {"p q/r": {"type": "integer"}, "z": {"$anchor": "s", "type": "string"}}}, objects("a", "b")),
        ({"properties": {"a": {"$ref": "#s"}, "b": {"$ref": "#/x-parts/0"}}, "x-parts": [{"type": "string"}],
          "$defs": {"z": {"$anchor": "s", "type": "integer"}}}, objects("a", "b")),
        ({"$id": "http://x/y", "$ref": "#s", "$defs": {"a": {"$anchor": "s", "maximum": 10},
                                                       "b": {"$id": "/z", "$anchor": "s", "maximum": 2}}}, [1, 5, 11]),
        ({"$schema": DRAFT.format("07"), "definitions": {"q": {"type": "string"}},
          "oneOf": [{"type": "integer"}, {"$ref": "#/definitions/q", "title": "x", "maxLength": 9}]}, [1, "a", None]),
        ({"type": "integer", "x-order": 1, "readOnly": True, "_format": "x", "standsFor": "s", "uniqueItems": False},
         [1, "a"]),
    ],
)  # fmt: skip
def test_what_a_validator_says_of_a_value_holds(schema: dict[str, Any], values: list[Any]) -> None:
    grammar = compiled(schema)
    checker = jsonschema.validators.validator_for(schema)(schema)
    wanted = [checker.is_valid(value) for value in values]
    if schema.get("format") == "int32":
        wanted = [True, False, False]
    assert [accepts(grammar, value) for value in values] == wanted
    assert len(set(wanted)) == 2, "values of both kinds are tried"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$schema": DRAFT.format("04"), "const": 1}, "#/const=1: the draft"),
        ({"$schema": DRAFT.format("07"), "prefixItems": [{}]}, "prefixItems.*the draft"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "prefixItems": [{}]}, "prefixItems.*the draft"),
        ({"$schema": DRAFT.format("06"), "dependentRequired": {"a": ["b"]}}, "dependentRequired.*the draft"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "dependencies": {}}, "dependencies.*the draft"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, "of older drafts"),
        ({"$schema": DRAFT.format("04"), "exclusiveMinimum": 3}, "draft 4"),
        ({"$schema": DRAFT.format("07"), "minimum": 3, "exclusiveMinimum": True}, "draft 4"),
        ({"$schema": DRAFT.format("03")}, "no known draft"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$schema": DRAFT.format("04"), "const": 1}}},
         "const=1"),
        ({"additonalProperties": False}, "nearly 'additionalProperties'"),
        ({"type": "string", "max_length": 3}, "nearly 'maxLength'"),
        ({"Type": "string"}, "nearly 'type'"),
        ({"type": "object", "name": {"type": "string"}}, 'Put it under "properties"'),
        ({"type": "string", "contentMediaType": "application/json"}, "would not be enforced"),
        ({"city": "Oslo", "age": 3}, "without any JSON Schema keyword"),
        ({"$ref": "https://example.com/schema"}, "it leads out of the schema"),
        ({"$ref": "#/$defs/none"}, "it leads nowhere"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"contains": {}}}}, r"#/\$defs/a/contains"),
        ({"uniqueItems": True}, "uniqueItems=True: this keyword would not be enforced"),
        ({"minProperties": 2}, "at most one more than the names in"),
        ({"discriminator": {"propertyName": "k"}, "oneOf": [{"properties": {"k": {"type": "string"}}}]}, "only points"),
        ({"x-guidance": {"lenient": True}}, "would not be enforced"),
        ({"$schema": DRAFT.format("07"), "definitions": {"q": {"type": ["integer", "string"]}},
          "oneOf": [{"const": 10}, {"$ref": "#/definitions/q", "type": "string"}]}, "ignores the keywords next to it"),
    ],
)  # fmt: skip
def test_a_keyword_that_would_not_be_enforced_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        compiled(schema)


class Cat(BaseModel):
    """A part whose tag has a default, so that it is not required."""

    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    """A part with two tags."""

    kind: Literal["dog", "wolf"]


class Bird(BaseModel):
    """A part beside a union."""

    kind: Literal["bird"]


class Zoo(BaseModel):
    """Unions with tags, one inside of another."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    others: list[Annotated[Annotated[Cat | Dog, Field(discriminator="kind")] | Bird, Field(discriminator="kind")]]


def test_tagged_unions_of_pydantic_are_told_apart_by_their_tags() -> None:
    grammar = compiled(Zoo)
    assert accepts(grammar, {"pet": {"kind": "cat", "lives": 3}, "others": [{"kind": "bird"}, {"kind": "wolf"}]})
    assert not accepts(grammar, {"pet": {"kind": "bird"}, "others": []})
    assert not accepts(grammar, {"pet": {"lives": 3}, "others": []}), "pydantic could not tell which part it is"


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"s": {"type": "integer", "multipleOf": 5}}, "required": ["s"],
          "patternProperties": {"^s$": {"maximum": 9}}}, [{"s": 5}], [{"s": 4}, {"s": 10}, {}]),
        ({"properties": {"a": {}, "b": {"type": "integer"}},
          "patternProperties": {"^(a|b)$": {"type": ["integer", "null"]}}},
         [{"a": None, "b": 1}, {}], [{"a": "x"}, {"b": None}]),
        ({"required": ["s"], "patternProperties": {"^s$": {"type": "integer"}}}, [{"s": 1}], [{"s": "x"}, {}]),
        ({"properties": {"a": {"type": "integer"}}, "patternProperties": {"^[ab]$": {"minimum": 3}}},
         [{"a": 3}, {"b": 4}], [{"a": 1}, {"b": 1}, {"c": 3}]),
        ({"properties": {"a": {}}, "patternProperties": {"": False}, "additionalProperties": True},
         [{}], [{"a": 1}, {"b": 1}]),
    ],
)  # fmt: skip
def test_a_name_of_properties_and_of_patterns_obeys_both(
    schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    grammar = compiled({"type": "object", "additionalProperties": False} | schema)
    assert [accepts(grammar, value) for value in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)
    for value in right:  # no name is awaited that nothing spells
        matcher = grammar.matcher.deep_copy()
        matcher.consume_tokens(tokenizer().encode(json.dumps(value)[:-1]))
        if matcher.consume_tokens(tokenizer().encode(", ")):
            matcher.compute_bitmask()
            assert not matcher.is_error()
