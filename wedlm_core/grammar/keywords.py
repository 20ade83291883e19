"""Keywords of JSON schemas: enforced ones, annotations, those of each draft, misspelled ones; and values of format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENFORCED = frozenset(
    {
        "type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs", "definitions",
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
        "dependencies", "dependentRequired", "dependentSchemas",
        "items", "prefixItems", "additionalItems", "minItems", "maxItems",
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minLength", "maxLength", "pattern", "format",
    }
)  # fmt: skip
"""Keywords that an output obeys."""

NOTES = frozenset(
    {
        "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary", "$comment", "title", "description",
        "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
        "contentSchema", "discriminator", "externalDocs", "xml",
    }
)  # fmt: skip
"""Annotations: keywords that do not restrict values."""

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = {"pattern": f"^({_YEAR}-(0[13-9]|1[0-2])|{_YEAR}-02-([01]|2[0-8])|{_LEAP_YEAR}-02-29)"}
_SECOND = {"pattern": "^[^:]*:[^:]*:[0-5]"}  # no leap second: validators take it at the end of a day in UTC only
_INSIDE = "[a-zA-Z0-9-]"
_END = "[a-zA-Z0-9]"
_LABEL = f"({_END}({_INSIDE}?{_END})?|{_END}{_INSIDE}({_END}{_INSIDE}*{_END}|-{_END}({_INSIDE}*{_END})?))"
_LABELS = {
    "pattern": rf"^{_LABEL}(\.{_LABEL})*$"
}  # no hyphens in places 3 and 4: whether Punycode is right is no regex
_INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}

FORMATS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "date-time": ({"format": "date-time"}, _DAY, _SECOND),
    "time": ({"format": "time"}, _SECOND),
    "date": ({"format": "date"}, _DAY),
    "hostname": ({"format": "hostname"}, _LABELS, {"maxLength": 253}),
    **{name: ({"format": name},) for name in ("duration", "email", "ipv4", "ipv6", "uuid", "uri")},
    "int32": (_INT32,),
    "int64": ({"minimum": -(2**53), "maximum": 2**53},),
    "float": (),
    "double": (),
}
"""Values of ``format`` that an output obeys: the schemas that together stand for each.

The first one has the format itself, if the backend knows it.
"""

_REMOVE = "Remove it, and check it on the parsed column afterwards."
_CASES = 'Use "anyOf" with one schema for each case.'
_REFUSED: Mapping[str, str] = {
    "uniqueItems": "Remove duplicates from the parsed column afterwards.",
    "contains": 'Use "prefixItems" for items that must be there.',
    "if": _CASES,
    "nullable": """Use "type": ["string", "null"].""",
    "propertyNames": 'Use "patternProperties" with "additionalProperties": false.',
    "unevaluatedProperties": 'Use "additionalProperties": false.',
    "unevaluatedItems": 'Use "prefixItems" with "items": false.',
    "$dynamicRef": 'Use "$ref".',
    "$recursiveRef": 'Use "$ref".',
    "extends": 'Use "allOf".',
    "divisibleBy": 'Use "multipleOf".',
    "disallow": _CASES,
    "optional": 'Use "required" of the object.',
    "min": 'Use "minimum", "minLength" or "minItems".',
    "max": 'Use "maximum", "maxLength" or "maxItems".',
    "x-guidance": 'Use "separators" or "whitespace_pattern" of structured outputs.',
    "switch": _CASES,
    "select": _CASES,
    **dict.fromkeys(("range", "exclusiveRange"), 'Use "minimum" and "maximum".'),
    **dict.fromkeys(
        ("formatMinimum", "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum", "regexp", "instanceof",
         "typeof", "transform", "uniqueItemProperties", "allRequired", "anyRequired", "oneRequired", "patternRequired",
         "prohibited", "deepProperties", "deepRequired", "$merge", "$patch"), _REMOVE,
    ),
}  # fmt: skip
"""Keywords that validators enforce and outputs would not, and the remedy."""

_WITHOUT_EFFECT: Mapping[str, str] = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords that have no effect without another one, which is refused."""

DRAFTS: Mapping[str | None, int | None] = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/draft/2019-09/schema": 8,
    "http://json-schema.org/draft/2020-12/schema": 9,
    "http://json-schema.org/schema": None,
    None: None,
}
"""Numbers of drafts, which grow with time."""
_SINCE: Mapping[str, int] = {
    "const": 6, "contains": 6, "propertyNames": 6, "if": 7, "dependentRequired": 8, "dependentSchemas": 8,
    "unevaluatedProperties": 8, "unevaluatedItems": 8, "minContains": 8, "maxContains": 8, "$recursiveRef": 8,
    "prefixItems": 9, "$dynamicRef": 9,
}  # fmt: skip
_CONTENT_IS_A_NOTE = 8  # before this draft validators might enforce it
HOLDS_BESIDE_REFERENCES = 8
"""The first draft that keeps keywords next to ``$ref``; older ones ignore them."""
_UNTIL: Mapping[str, int] = {"dependencies": 7, "additionalItems": 8}
_PRIVATE = ("x-", "X-", "_", "@", "#", "//")
"""Beginnings of names that mark an annotation."""


def draft_name(named: object) -> str | None:
    """The value of ``$schema`` as :data:`DRAFTS` has it, if it names a draft."""
    return None if named is None else str(named).removesuffix("#").replace("https://", "http://")


def keyword_fault(keyword: str, value: Any, schema: Mapping[str, Any], draft: int | None) -> tuple[str, str] | None:
    """The rule that a keyword of a schema breaks, and the remedy; None where it is enforced or has no effect."""
    if keyword == "uniqueItems" and value is False:
        return None
    if keyword == "if" and "then" not in schema and "else" not in schema:
        return None
    if keyword in _REFUSED or _WITHOUT_EFFECT.get(keyword) in schema:
        return "this keyword would not be enforced", _REFUSED.get(keyword, _REMOVE)
    if keyword in ("contentEncoding", "contentMediaType") and (draft is None or draft < _CONTENT_IS_A_NOTE):
        return "this keyword would not be enforced", "Remove it, or name a draft since 2019-09, where it is a note."
    if draft is not None and not _SINCE.get(keyword, 0) <= draft <= _UNTIL.get(keyword, draft):
        return "the draft that $schema names does not have it, or not in this form", "Name another draft, or none."
    if keyword in ENFORCED:
        return None
    if keyword in NOTES or keyword in _WITHOUT_EFFECT or keyword.startswith(_PRIVATE):
        return None
    near = _misspelled(keyword)
    if near is not None:
        return f"not a keyword, but nearly {near!r}", f"Write {near!r}, or begin an annotation with 'x-'."
    if not schema.keys() & (ENFORCED | NOTES):
        return "a schema without any JSON Schema keyword would not be enforced", 'Write "type", or {} for any value.'
    if _is_schema(value) and not schema.keys() & ENFORCED - {"type", "required", "$defs", "definitions"}:
        return "not a keyword, but its value is a schema", 'Put it under "properties", or under "$defs".'
    return None


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("type"), str) and value["type"] in _TYPES


_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
_STANDARD = tuple(sorted((ENFORCED - {"$defs", "definitions"}) | _SINCE.keys() | {"uniqueItems"}))


def _misspelled(keyword: str) -> str | None:
    """The keyword that a name nearly is: written in another case, or a letter away (two in a long name)."""
    away, near = min((_distance(_bare(keyword), _bare(known)), known) for known in _STANDARD)
    allowed = 0 if len(near) < 5 and near not in ("type", "enum") else 1 if len(near) < 8 else 2
    return near if away <= allowed else None


def _bare(keyword: str) -> str:
    return keyword.casefold().translate({ord(char): None for char in "-_ :$"})


def _distance(one: str, other: str) -> int:
    """How many letters are missing, added, wrong or swapped with the next."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before, row = list[int](), list(range(len(other) + 1))
    for i, char in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char != wanted))
            if i > 1 and j > 1 and char == other[j - 2] and one[i - 2] == wanted:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]
