"""A schema whose values never end is found out, and no other."""

from __future__ import annotations

import time
from typing import Any

import pytest

from wedlm_core.errors import RequestError
from wedlm_core.grammar.schema_limits import has_finite_value
from wedlm_core.grammar.schemas import check_schema

SELF: dict[str, Any] = {"$ref": "#"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def with_defs(first: str, **parts: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{first}", "$defs": parts}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


ENDLESS = {
    "itself": SELF,
    "a field": an_object(a=SELF),
    "a field after others": an_object(a={"type": "string"}, b={"type": "integer"}, c=SELF),
    "each of two": an_object(a={"anyOf": [SELF, an_object(b=SELF)]}),
    "one of all": an_object(a={"allOf": [{"type": "object"}, SELF]}),
    "an item": {"type": "array", "items": SELF, "minItems": 1},
    "a first item": {"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 2},
    "two that need each other": with_defs("a", a=an_object(b=ref("b")), b={"type": "array", "items": ref("a"),
                                                                         "minItems": 1}),
    "a field that may be left out, of a part without an end": {
        **an_object(a=ref("part")), "required": [], "$defs": {"part": an_object(a=ref("part"))}},
    "one of two, the other without an end": {"anyOf": [{"type": "null"}, ref("part")], "$defs": {"part": ref("part")}},
    "another field": {"type": "object", "required": ["a"], "additionalProperties": SELF},
}  # fmt: skip
ENDING = {
    "a field that may be left out": {**an_object(a=SELF), "required": []},
    "null": an_object(a={"anyOf": [{"type": "null"}, SELF]}),
    "any value": {},
    "no type": {"properties": {"a": SELF}, "required": ["a"]},
    "an empty list": {"type": "array", "items": SELF},
    "a list of others": {"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 1},
    "a tree": with_defs("node", node=an_object(text={"type": "string"},
                                               children={"type": "array", "items": ref("node")})),
    "two kinds": with_defs("a", a=an_object(b=ref("b")), b={"anyOf": [an_object(a=ref("a")), {"const": 1}]}),
    "a scalar as well": {**an_object(a=SELF), "type": ["object", "string"]},
    "a long chain": with_defs("0", **{str(n): an_object(next=ref(str(n + 1))) for n in range(60)},
                              **{"60": {"const": 0}}),
    "nothing at all, as the backend says": {"type": "array", "items": False, "minItems": 1},
    "elsewhere": an_object(a={"$ref": "https://example.com/schema"}),
    "nowhere": an_object(a={"$ref": "#/$defs/none"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_whose_values_must_contain_themselves_is_refused(name: str) -> None:
    assert not has_finite_value(ENDLESS[name])
    with pytest.raises(RequestError, match=r"json#/\$ref='#.*contain itself"):
        check_schema(ENDLESS[name])


@pytest.mark.parametrize("name", ENDING)
def test_a_schema_with_a_value_that_ends_is_taken(name: str) -> None:
    assert has_finite_value(ENDING[name])


def test_many_references_take_no_long_time() -> None:
    chain = {str(n): an_object(next=ref(str(n + 1))) for n in range(3000)}
    begin = time.process_time()
    assert has_finite_value(with_defs("0", **chain, **{"3000": {"const": 0}}))
    assert time.process_time() - begin < 5
