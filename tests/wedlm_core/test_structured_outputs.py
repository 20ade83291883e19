"""Structured outputs: one kind at a time, in the forms that people have; wrong values name rule and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from wedlm_core.errors import RequestError
from wedlm_core.grammar.schemas import check_schema
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.types import SamplingParams


class Person(BaseModel):
    """A schema as a class."""

    name: str
    age: int


def test_a_schema_may_be_a_mapping_text_or_a_pydantic_model() -> None:
    schema = Person.model_json_schema()
    forms = [schema, StructuredOutputs(json=schema).json, Person]
    made = [StructuredOutputs(json=form) for form in forms]
    assert made[0] == made[1] == made[2]
    assert made[0].schema == schema
    assert list(made[0].schema["properties"]) == ["name", "age"], "the order of fields is kept"
    assert hash(made[0]) == hash(made[1])


def test_sampling_params_take_the_fields_as_a_mapping() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a", "b", "a"], "json": None})
    assert params.structure == StructuredOutputs(choice=("a", "b"))
    assert SamplingParams(structured_outputs=None).structure is None
    assert StructuredOutputs(json_object=True).schema == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "structured_outputs=None: exactly one of json, regex"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs='regex, choice': exactly one"),
        ({"json": "{"}, "structured_outputs.json='{': not JSON"),
        ({"json": [1]}, "structured_outputs.json=[1]: a JSON schema is an object"),
        ({"json": {"enum": [float("nan")]}}, "cannot be written as JSON"),
        ({"regex": ""}, "structured_outputs.regex='': Unicode text that is not empty"),
        ({"grammar": " "}, "structured_outputs.grammar=' ': Unicode text that is not empty"),
        ({"regex": "\ud800"}, "Unicode text"),
        ({"regex": "a" * 300_000}, "at most 262144 characters"),
        ({"choice": []}, "structured_outputs.choice=[]: at least one text"),
        ({"choice": "yes"}, "structured_outputs.choice='yes'"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"json_object": 1}, "structured_outputs.json_object=1: true or false"),
        ({"regex": "a", "after": ""}, "structured_outputs.after=''"),
        ({"json_object": True, "separators": (";", ":")}, "structured_outputs.separators=(';', ':')"),
        ({"schema": {}}, "schema={}: no such argument of StructuredOutputs. Use json."),
        ({"jsn": {}}, "Did you mean 'json'?"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as found:
        StructuredOutputs(**fields)
    assert words in str(found.value)


def test_a_schema_whose_objects_share_parts_is_refused_by_the_length_of_its_text() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):  # 2**40 schemas as text, 40 objects in memory
        schema = {"anyOf": [schema, schema]}
    with pytest.raises(RequestError, match="more than 262144 characters"):
        StructuredOutputs(json=schema)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stop": "x"}, "stop=('x',): structured_outputs says where the output ends. Drop stop"),
        ({"stop_token_ids": [3]}, "stop_token_ids="),
        ({"ignore_eos": True}, "ignore_eos=True"),
        ({"min_tokens": 3}, "min_tokens=3"),
        ({"strategy": "streaming"}, "strategy 'streaming' chooses a token before"),
        ({"strategy": "reference"}, "strategy 'reference'"),
        ({"strategy": "blockwise"}, "strategy 'blockwise'"),
    ],
)
def test_what_contradicts_a_constraint_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as found:
        SamplingParams(structured_outputs={"regex": "a"}, **fields)
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "format": "iri"}, "structured_outputs.json#/format='iri': one of date"),
        (
            {"properties": {"a": {"not": {"pattern": "b"}}}},
            "structured_outputs.json#/properties/a/not={'pattern': 'b'}",
        ),
        ({"items": [{}], "prefixItems": [{}]}, "older drafts have other keywords"),
        ({"properties": [1]}, "an object of schemas"),
        ({"anyOf": {"a": 1}}, "a list of schemas"),
        ({"anyOf": [3]}, "a schema is an object, true or false"),
        ({"minItems": 20_000}, "at most 10000"),
        ({"nullable": True}, '"type": ["string", "null"]'),
        ({"x-guidance": {}}, "this keyword would not be enforced"),
        ({"properties": {"a": {"$id": "b", "$ref": "#"}}}, "it stands in a part that has an $id of its own"),
    ],
)
def test_schemas_that_would_not_be_enforced_are_refused_with_their_place(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as found:
        check_schema(schema)
    assert words in str(found.value)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(RequestError, match="at most 64 schemas inside each other"):
        check_schema(deep)
