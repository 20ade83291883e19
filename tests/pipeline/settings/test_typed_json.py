"""Arrow types of JSON schemas, and values in them: held against a generator that knows the result of each value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.settings.parsing import Parse
from pipeline.settings.typed_json import json_type, read_json

TEXT = pa.string()


def typed(schema: Any) -> pa.DataType:
    return json_type(schema).arrow


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "string", "format": "date-time"}, TEXT),
        ({"type": "integer", "minimum": 0}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"enum": ["a", "b"]}, TEXT),
        ({"enum": [1, 2, None]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"const": True}, pa.bool_()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64()),
        ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}, TEXT),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, pa.list_(pa.int64())),
        ({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}},
         pa.struct([("b", pa.int64()), ("a", TEXT)])),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "number"}}}, pa.float64()),
        ({"allOf": [{"$ref": "#/$defs/x"}], "description": "d", "$defs": {"x": {"type": "integer"}}}, pa.int64()),
        ({"type": "object", "properties": {"never": False, "a": {"type": "integer"}}}, pa.struct([("a", pa.int64())])),
        ({"type": "object", "properties": {"null": {"type": "null"}}}, pa.struct([("null", TEXT)])),
    ],
)  # fmt: skip
def test_what_has_one_type_gets_it_in_the_order_of_the_schema(schema: Any, wanted: pa.DataType) -> None:
    assert typed(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": ["a", 1]},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "integer"}, "A": {"type": "integer"}}},
        {"type": "object", "properties": {"": {"type": "integer"}}},
        {"type": "object", "properties": {"a\nb": {"type": "integer"}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_what_has_none_is_json_text(schema: Any) -> None:
    assert json_type(schema).kind == "text"


def test_a_recursive_part_is_json_text_and_the_rest_is_not() -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}}
    assert typed({"$defs": {"n": node}, "$ref": "#/$defs/n"}) == pa.struct([("v", pa.int64()), ("next", TEXT)])
    assert typed(node | {"properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}).field("next").type == TEXT


def test_deep_and_wide_schemas_are_bounded() -> None:
    deep: Any = {"type": "integer"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    kind, levels = typed(deep), 0
    while pa.types.is_list(kind):
        kind, levels = kind.value_type, levels + 1
    assert kind == TEXT
    assert levels <= 20
    doubled = {f"d{i}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{i + 1}"} for side in "ab"}}
               for i in range(14)}  # fmt: skip
    assert typed({"$ref": "#/$defs/d0", "$defs": doubled | {"d14": {"type": "integer"}}}) == TEXT


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 2**63),
        ({"type": "integer"}, "1"),
        ({"type": "integer"}, True),
        ({"type": "number"}, 10**400),
        ({"type": "string"}, "\ud800"),
        ({"type": "array", "items": {"type": "integer"}}, {"a": 1}),
    ],
)
def test_what_the_type_cannot_hold_is_null_and_told(schema: Any, value: Any) -> None:
    lost: list[Any] = []
    found = json_type({"type": "object", "properties": {"x": schema, "y": {"type": "string"}}})
    assert found.convert({"x": value, "y": "kept"}, lost) == {"x": None, "y": "kept"}
    assert lost == [value]


def test_what_is_no_json_is_refused() -> None:
    for text in ("", "{", "NaN", "-Infinity", '{"a": NaN}', "[" * 100_000, "'a'", "1 2"):
        with pytest.raises(ValueError, match=r"Expecting|no JSON|nested|Extra data"):
            read_json(text)


LEAVES: list[tuple[Any, Any, pa.DataType]] = [
    ({"type": "string"}, st.text(max_size=5), TEXT),
    ({"type": "integer"}, st.integers(-(2**63), 2**63 - 1), pa.int64()),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False), pa.float64()),
    ({"type": "boolean"}, st.booleans(), pa.bool_()),
    ({"enum": ["a", "b"]}, st.sampled_from(["a", "b"]), TEXT),
    ({"const": 7}, st.just(7), pa.int64()),
]
NAMES = st.sampled_from(["a", "text", "a.b", "é", "名", "row_id", "x y", "$ref", "type", "properties"])


@st.composite
def cases(draw: Any, depth: int = 2) -> tuple[Any, Any, Any, pa.DataType]:
    """A schema, a value of it, the value's result, and its type."""
    kinds = ["leaf", "null", "union", "free"] + ["list", "struct", "struct"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        schema, values, arrow = draw(st.sampled_from(LEAVES))
        value = draw(values)
        return schema, value, value, arrow
    if kind == "null":
        schema, value, becomes, arrow = draw(cases(depth=depth - 1))
        wrapped = draw(st.sampled_from([{"anyOf": [schema, {"type": "null"}]}, {"oneOf": [{"type": "null"}, schema]}]))
        return (wrapped, None, None, arrow) if draw(st.booleans()) else (wrapped, value, becomes, arrow)
    if kind in ("union", "free"):
        schema = {"type": ["string", "boolean", "array"]} if kind == "union" else draw(st.sampled_from([{}, True]))
        value = draw(st.one_of(st.text(max_size=3), st.booleans(), st.lists(st.integers(), max_size=2)))
        return schema, value, json.dumps(value, ensure_ascii=False), TEXT
    if kind == "list":
        schema, value, becomes, arrow = draw(cases(depth=depth - 1))
        count = draw(st.integers(0, 2))
        return {"type": "array", "items": schema}, [value] * count, [becomes] * count, pa.list_(arrow)
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    parts = {name: draw(cases(depth=depth - 1)) for name in names}
    there = {name: draw(st.booleans()) for name in names}
    schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}
    return (
        schema,
        {name: part[1] for name, part in reversed(parts.items()) if there[name]} | {"more": 1},
        {name: part[2] if there[name] else None for name, part in parts.items()},
        pa.struct([(name, part[3]) for name, part in parts.items()]),
    )


@given(case=cases())
@settings(max_examples=150, deadline=None)
def test_a_parsed_column_has_the_values_of_the_text_under_the_mapping(case: tuple[Any, Any, Any, pa.DataType]) -> None:
    schema, value, becomes, arrow = case
    parse = Parse(json=schema if isinstance(schema, dict) else {})
    text = json.dumps(value, ensure_ascii=False)
    column = parse.values(pa.array([text, None, text]), ["stop", "error", "length"])
    assert column.type == parse.field("parsed").type == arrow
    assert column.to_pylist() == [becomes, None, None]
    assert parse.faults(pa.array([text, None]), ["stop", "error"]) == {}
