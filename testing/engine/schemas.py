"""JSON schemas of every feature that structured outputs enforce, and other kinds of constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wedlm_core.structured_outputs import StructuredOutputs


def _object(properties: Mapping[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False,
            "required": list(properties) if required is None else required, **more}  # fmt: skip


_INT, _NUM, _BOOL, _NULL = ({"type": kind} for kind in ("integer", "number", "boolean", "null"))
_SHORT = {"type": "string", "maxLength": 6}
_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
_COLOUR = {"enum": ["red", "green", "blue"]}
LINK = {"type": "object", "properties": {"v": _DIGIT, "next": {"anyOf": [{"$ref": "#/$defs/link"}, _NULL]}},
         "required": ["v", "next"], "additionalProperties": False}  # fmt: skip

SCHEMAS: Mapping[str, dict[str, Any]] = {
    # Numbers
    "integer": _INT,
    "integer from 0 to 9": _DIGIT,
    "integer from -5 to 120": {"type": "integer", "minimum": -5, "maximum": 120},
    "integer between 3 and 7": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 7},
    "integer of 1000 and more": {"type": "integer", "minimum": 1000},
    "multiple of 5": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
    "number": _NUM,
    "number from 0.5 to 1.5": {"type": "number", "minimum": 0.5, "maximum": 1.5},
    "number below 0": {"type": "number", "exclusiveMaximum": 0, "minimum": -100},
    "number between 0 and 1": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    # Other scalars
    "boolean": _BOOL,
    "null": _NULL,
    "nullable digit": {"anyOf": [_DIGIT, _NULL]},
    "list of types": {"type": ["boolean", "null"]},
    "const text": {"const": "always this"},
    "const object": {"const": {"a": [1, None, "x"]}},
    "enum of texts": _COLOUR,
    "enum of everything": {"enum": [1, "a", None, True, {"x": 1.5}, [2]]},
    "enum with a common prefix": {"enum": ["app", "apple", "apples", "application"]},
    # Texts
    "short text": _SHORT,
    "text of 2 to 5": {"type": "string", "minLength": 2, "maxLength": 5},
    "empty text": {"type": "string", "maxLength": 0},
    "pattern of capitals": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern of words": {"type": "string", "pattern": "^(yes|no)( (please|thanks))?$"},
    "pattern and length": {"type": "string", "pattern": "^a[bc]+$", "maxLength": 5},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration", "maxLength": 8},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email"},
    "hostname": {"type": "string", "format": "hostname"},
    # Arrays
    "digits": {"type": "array", "items": _DIGIT, "maxItems": 4},
    "2 to 3 booleans": {"type": "array", "items": _BOOL, "minItems": 2, "maxItems": 3},
    "empty array": {"type": "array", "items": _INT, "maxItems": 0},
    "pair": {"type": "array", "prefixItems": [_DIGIT, _COLOUR], "items": False, "minItems": 2},
    "prefix and rest": {"type": "array", "prefixItems": [_BOOL], "items": _DIGIT, "minItems": 1, "maxItems": 3},
    "matrix": {"type": "array", "items": {"type": "array", "items": _DIGIT, "minItems": 2, "maxItems": 2},
               "minItems": 2, "maxItems": 2},
    "array of objects": {"type": "array", "items": _object({"k": _COLOUR, "v": _DIGIT}), "minItems": 1, "maxItems": 2},
    # Objects
    "person": _object({"name": _SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    "long keys": _object({"a_rather_long_name_of_a_field": _DIGIT, "another_long_name_of_a_field": _BOOL}),
    "optional fields": _object({"a": _DIGIT, "b": _BOOL, "c": _NULL}, []),
    "one required of three": _object({"a": _DIGIT, "b": _BOOL, "c": _NULL}, ["b"]),
    "nested objects": _object({"outer": _object({"inner": _object({"x": _DIGIT}), "y": _BOOL})}),
    "no fields": _object({}),
    "additional digits": {"type": "object", "properties": {"a": _BOOL}, "required": ["a"], "maxProperties": 2,
                          "additionalProperties": _DIGIT},
    "pattern properties": {"type": "object", "patternProperties": {"^k[0-9]$": _DIGIT}, "maxProperties": 2,
                           "additionalProperties": False},
    "at most one field": _object({"a": _DIGIT, "b": _DIGIT}, [], maxProperties=1),
    "unicode keys": _object({"grün": _DIGIT, "名前": _BOOL, "with \"quotes\"": _NULL, "a/b\\c": _DIGIT}),
    "empty key": _object({"": _DIGIT}),
    # Combinations
    "anyOf of objects": {"anyOf": [_object({"kind": {"const": "a"}, "x": _DIGIT}),
                                   _object({"kind": {"const": "b"}, "y": _BOOL})]},
    "oneOf of types": {"oneOf": [_DIGIT, _BOOL]},
    "oneOf of tagged objects": {"oneOf": [_object({"t": {"const": 1}, "x": _DIGIT}),
                                          _object({"t": {"const": 2}, "x": _BOOL})]},
    "oneOf of numbered objects": {"oneOf": [{**_object({"n": {"const": 0}, "x": _DIGIT}), "required": ["n"]},
                                            {**_object({"n": {"enum": [1, 2]}, "x": _BOOL}), "required": ["n"]}]},
    "oneOf of named parts": {"$defs": {"yes": {**_object({"is": {"const": True}, "x": _DIGIT}), "required": ["is"]},
                                       "no": {**_object({"is": {"const": False}, "y": _BOOL}), "required": ["is"]}},
                             "oneOf": [{"$ref": "#/$defs/yes"}, {"$ref": "#/$defs/no"}]},
    "allOf of bounds": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
    "allOf of objects": {"allOf": [{"type": "object", "properties": {"a": _DIGIT}, "required": ["a"]},
                                   {"properties": {"b": _BOOL}, "required": ["b"]}],
                         "maxProperties": 2},
    "$defs": {"$defs": {"digit": _DIGIT}, **_object({"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}})},
    "definitions": {"definitions": {"c": _COLOUR}, "type": "array", "items": {"$ref": "#/definitions/c"},
                    "minItems": 1, "maxItems": 2},
    "linked list": {"$defs": {"link": LINK}, "$ref": "#/$defs/link"},
    "tree": {"$defs": {"t": _object({"v": _DIGIT, "c": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}
                                     })}, "$ref": "#/$defs/t"},
    "notes": {"title": "T", "description": "D", "default": 1, "examples": [2], "$comment": "C", "deprecated": True,
              "$schema": "https://json-schema.org/draft/2020-12/schema", **_DIGIT},
    "row of a table": _object({"id": {"type": "integer", "minimum": 1, "maximum": 99999}, "colour": _COLOUR,
                               "price": {"type": "number", "minimum": 0, "maximum": 10}, "sold": _BOOL,
                               "tags": {"type": "array", "items": _COLOUR, "maxItems": 2},
                               "note": {"anyOf": [{"type": "string", "maxLength": 4}, _NULL]}}),
}  # fmt: skip

OTHERS: Mapping[str, StructuredOutputs] = {
    "telephone": StructuredOutputs(regex=r"\d{3}-\d{4}( ext \d{1,2})?"),
    "alternatives": StructuredOutputs(regex="(cat|dog)s? and (mouse|mice)"),
    "not these": StructuredOutputs(regex="[^a-z0-9]{2,3}x"),
    "words": StructuredOutputs(regex=r"\w{1,4} \w{1,4}"),
    "inside a class": StructuredOutputs(regex=r"[\w.]{1,5}@[\w-]{1,4}\.(org|net)"),
    "not words": StructuredOutputs(regex=r"\W\w\W"),
    "any case": StructuredOutputs(regex="(?i)abc"),
    "lazy": StructuredOutputs(regex="a{1,9}?b"),
    "anchors": StructuredOutputs(regex="^ab?c$"),
    "choice": StructuredOutputs(choice=["yes", "no", "yes, of course", 'a "quoted" \\ one', "two\nlines", "ünïcödé"]),
    "one choice": StructuredOutputs(choice=["the only one"]),
    "lark": StructuredOutputs(grammar='start: sum\nsum: NUM ("+" NUM){1,2} "=" NUM\nNUM: /[1-9]/'),
    "gbnf": StructuredOutputs(grammar='root ::= ("ab" | "cd") [0-9] [0-9]?'),
    "object": StructuredOutputs(json_object=True),
    "free whitespace": StructuredOutputs(json=_object({"a": _DIGIT}), whitespace_pattern=r"[ \n]{0,2}"),
    "no whitespace": StructuredOutputs(json=_object({"a": _DIGIT, "b": _DIGIT}), separators=(",", ":")),
    "after a tag": StructuredOutputs(json=_object({"a": _DIGIT}), after="</t>"),
    "after a special token": StructuredOutputs(choice=["x", "y"], after="<|mask|>"),
}
