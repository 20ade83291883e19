"""Which JSON schemas are taken: a keyword that would not be enforced is an error, never ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from wedlm_core.errors import RequestError, explain
from wedlm_core.grammar.finite import has_finite_value, references
from wedlm_core.grammar.numerals import is_exact
from wedlm_core.grammar.patterns import pattern_fault, with_python_classes

__all__ = ["ENFORCED", "FORMATS", "NOTES", "check_schema", "for_backend"]

ENFORCED = frozenset(
    {
        "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions",
        "properties", "required", "additionalProperties", "patternProperties", "maxProperties",
        "items", "prefixItems", "minItems", "maxItems",
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minLength", "maxLength", "pattern", "format",
    }
)  # fmt: skip
"""Keywords that an output obeys."""

NOTES = frozenset(
    {
        "$schema", "$id", "$comment", "title", "description", "default", "examples", "example", "deprecated",
        "readOnly", "writeOnly",
    }
)  # fmt: skip
"""Keywords that say nothing of which values are valid."""

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # fmt: skip
"""Values of ``format`` that an output obeys."""

_REMEDIES = {
    "minProperties": 'Name them in "required".',
    "uniqueItems": "Remove duplicates from the parsed column afterwards.",
    "contains": 'Use "prefixItems" for items that must be there.',
    "not": 'Say what is allowed with "enum", "anyOf" or "pattern".',
    "if": 'Use "anyOf" with one schema for each case.',
    "nullable": """Use "type": ["string", "null"].""",
    "additionalItems": 'Use "prefixItems", and "items" for what follows.',
    "dependentRequired": 'Use "anyOf" with one schema for each case.',
    "propertyNames": 'Use "patternProperties" with "additionalProperties": false.',
    "unevaluatedProperties": 'Use "additionalProperties": false.',
}
_DEEPEST = 64
_MOST_NODES = 20_000
_MOST_ITEMS = 10_000
_MOST_STEPS = 10_000  # of a multiple: the backend's time to compile grows with its square
_LARGEST_NUMBER = 2**53  # larger ones are rounded on their way through the backend
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = f"^({_YEAR}-(0[13-9]|1[0-2])|{_YEAR}-02-([01]|2[0-8])|{_LEAP_YEAR}-02-29)"
_SECOND = "^[^:]*:[^:]*:[0-5]"  # no leap second: validators take it at the end of a day in UTC only
_NARROWER = {"date": (_DAY,), "time": (_SECOND,), "date-time": (_DAY, _SECOND)}


@dataclass(frozen=True)
class _Place:
    """A schema inside of the schema."""

    path: str
    schema: Any
    depth: int


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse what would not be enforced, or is too large.

    Raises:
        RequestError: the message names the place in the schema, the rule and the remedy.
    """
    todo, seen, steps = [_Place("", schema, 0)], 0, Fraction(1)
    while todo:
        place = todo.pop()
        seen += 1
        _require(seen <= _MOST_NODES, place, "parts", f"more than {_MOST_NODES}", "a schema of fewer", "Simplify it.")
        _require(place.depth <= _DEEPEST, place, "depth", place.depth, f"at most {_DEEPEST} schemas inside each other",
                 'Flatten it, or name the parts under "$defs".')  # fmt: skip
        if isinstance(place.schema, bool):
            continue
        _require(isinstance(place.schema, Mapping), place, "schema", place.schema, "a schema is an object, true or "
                 "false", "Correct it.")  # fmt: skip
        _check_keywords(place)
        _check_numbers(place)
        _check_open_range(place)
        _check_texts(place)
        steps = _common_multiple(place, steps)
        todo.extend(_inside(place))
    _require(has_finite_value(schema), _Place("", schema, 0), "$ref", next(references(schema), None),
             "every value would contain itself, so that no output could end",
             "Leave the field out of \"required\", or allow null beside it.")  # fmt: skip


def _check_keywords(place: _Place) -> None:
    schema = place.schema
    for keyword, value in schema.items():
        _require(
            keyword in ENFORCED or keyword in NOTES, place, keyword, value, "this keyword would not be enforced",
            _REMEDIES.get(keyword, "Remove it, and check it on the parsed column afterwards."),
        )  # fmt: skip
    if "format" in schema:
        known = ", ".join(sorted(FORMATS))
        _require(schema["format"] in FORMATS, place, "format", schema["format"], f"one of {known}",
                 'Use "pattern", or remove it.')  # fmt: skip
    _require("$id" not in schema or not place.path, place, "$id", schema.get("$id"), "only the whole schema has one",
             'Refer to parts by "$ref": "#/$defs/...".')  # fmt: skip
    items = schema.get("items")
    _require(not isinstance(items, list), place, "items", items, "a schema; a list of them is of older drafts",
             'Use "prefixItems".')  # fmt: skip
    for keyword in ("minItems", "maxItems", "minLength"):
        value = schema.get(keyword)
        if isinstance(value, int) and not isinstance(value, bool):
            _require(value <= _MOST_ITEMS, place, keyword, value, f"at most {_MOST_ITEMS}", "Lower it.")


def _check_numbers(place: _Place) -> None:
    schema = place.schema
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"):
        for value in _scalars(schema.get(keyword)):
            if _is_number(value):
                _require(abs(value) <= _LARGEST_NUMBER, place, keyword, value, "a number from -2**53 to 2**53: larger "
                         "ones would be rounded", 'Use a string with a "pattern".')  # fmt: skip
                _require(is_exact(value), place, keyword, value, "a number of at most 15 significant digits: "
                         "longer ones may be rounded", "Round it.")  # fmt: skip
    for inclusive, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        _require(inclusive not in schema or exclusive not in schema, place, exclusive, schema.get(exclusive),
                 f"beside {inclusive} one of them would not be enforced", "Keep the narrower one.")  # fmt: skip


def _check_open_range(place: _Place) -> None:
    """The backend takes an open bound that is an integer as closed where the other one is less than 1 away."""
    parts = [place.schema, *(p for kw in ("allOf", "anyOf", "oneOf") for p in _listed(place.schema.get(kw)))]
    parts = [part for part in parts if isinstance(part, Mapping)]
    for keyword, others, sign in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1),
    ):  # fmt: skip
        opposite = [part[other] for part in parts for other in others if _is_number(part.get(other))]
        for value in (part[keyword] for part in parts if _is_number(part.get(keyword))):
            near = value == int(value) and any(0 < sign * (other - value) < 1 for other in opposite)
            _require(not near, place, keyword, value, "a bound that is an integer, and open, would be let through "
                     "where the other bound is less than 1 away", "Use the closed bound next to it.")  # fmt: skip


def _common_multiple(place: _Place, steps: Fraction) -> Fraction:
    """The least common multiple of all ``multipleOf`` so far: the backend may have to meet all of them at once."""
    value = place.schema.get("multipleOf")
    if not _is_number(value) or value <= 0:
        return steps  # the backend says what is wrong with it
    exact = Fraction(value)
    _require(exact == Fraction(str(value)), place, "multipleOf", value, "a fraction of 2, such as 0.5: validators "
             "compute in binary and reject multiples of others", "Use an integer of the smallest unit.")  # fmt: skip
    below = math.lcm(steps.denominator, exact.denominator)
    both = math.lcm(int(steps * below), int(exact * below))
    _require(both <= _MOST_STEPS, place, "multipleOf", value, "the least common multiple of all of them "
             f"is {both}, at most {_MOST_STEPS} are compiled", "Lower it, or check it afterwards.")  # fmt: skip
    return Fraction(both, below)


def _check_texts(place: _Place) -> None:
    schema = place.schema
    for keyword in ("const", "enum"):
        for value in _scalars(schema.get(keyword)):
            _require(not isinstance(value, str) or _is_spelled(value), place, keyword, value,
                     "control characters in it have no short form in JSON", "Remove them.")  # fmt: skip
    for keyword in ("properties", "required"):
        for name in _listed(schema.get(keyword)):
            _require(not isinstance(name, str) or _is_spelled(name), place, keyword, name,
                     "control characters in it have no short form in JSON", "Rename it.")  # fmt: skip
    patterns = schema.get("patternProperties")
    own = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*own, *(patterns if isinstance(patterns, Mapping) else ())]:
        fault = pattern_fault(pattern) if isinstance(pattern, str) else None
        _require(fault is None, place, "pattern", pattern, fault or "", "Write it with what all regexes share.")


def _scalars(value: Any) -> Iterator[Any]:
    """All texts and numbers inside of a JSON value."""
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            todo.extend((*value, *value.values()))
        elif isinstance(value, list):
            todo.extend(value)
        else:
            yield value


def _listed(value: Any) -> list[Any]:
    """The parts of a list, the names of an object; nothing of what should be one and is not."""
    return list(value) if isinstance(value, (list, Mapping)) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_spelled(text: str) -> bool:
    return all((char >= " " and char != "\x7f") or char in "\n\r\t\b\f" for char in text)


def for_backend(schema: Any) -> Any:
    """The schema said so that the backend's outputs pass validators too: regexes as Python's, days that exist.

    The backend tells the parts of ``oneOf`` apart by their types and by texts. Parts that are told apart by other
    values of a field, such as numbers, are said as ``anyOf``, which is the same then.
    """
    return _said(schema, schema if isinstance(schema, Mapping) else {})


def _said(schema: Any, whole: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    if "anyOf" not in made and "oneOf" in made and _have_tags([_resolved(part, whole) for part in made["oneOf"]]):
        made["anyOf"] = made.pop("oneOf")
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        if keyword in made:
            made[keyword] = {name: _said(part, whole) for name, part in made[keyword].items()}
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if keyword in made:
            made[keyword] = [_said(part, whole) for part in made[keyword]]
    for keyword in ("items", "additionalProperties"):
        if keyword in made:
            made[keyword] = _said(made[keyword], whole)
    if isinstance(made.get("pattern"), str):
        made["pattern"] = with_python_classes(made["pattern"])
    if "patternProperties" in made:
        made["patternProperties"] = {with_python_classes(p): part for p, part in made["patternProperties"].items()}
    if made.get("format") in _NARROWER:
        made["allOf"] = [*made.get("allOf", ()), *({"pattern": pattern} for pattern in _NARROWER[made["format"]])]
    return made


def _resolved(part: Any, whole: Mapping[str, Any]) -> Any:
    """A part that has a name under "$defs", in place of the reference to it."""
    match = (
        re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", str(part.get("$ref"))) if isinstance(part, Mapping) else None
    )
    return whole.get(match[1], {}).get(match[2], part) if match else part


def _have_tags(parts: Sequence[Any]) -> bool:
    """Whether the parts are objects that all require a field whose values differ from part to part."""
    if not parts or not all(isinstance(part, Mapping) and part.get("type") == "object" for part in parts):
        return False
    common = set.intersection(
        *({name for name in _listed(part.get("required")) if isinstance(name, str)} for part in parts)
    )
    return any(_differ([_values(part.get("properties", {}).get(name)) for part in parts]) for name in common)


def _values(field: Any) -> list[object]:
    """The values that a field may have, where it lists them and they are scalars; none else."""
    listed = [field["const"]] if isinstance(field, Mapping) and "const" in field else _enum(field)
    plain = all(value is None or isinstance(value, (str, int, float)) for value in listed)
    return [(type(value), value) if isinstance(value, bool) else value for value in listed] if plain else []


def _enum(field: Any) -> list[Any]:
    values = field.get("enum") if isinstance(field, Mapping) else None
    return values if isinstance(values, list) else []


def _differ(groups: Sequence[list[object]]) -> bool:
    """Whether there are values in each group, and none in two of them."""
    return all(groups) and len(set().union(*groups)) == sum(len(set(group)) for group in groups)


def _inside(place: _Place) -> Iterator[_Place]:
    """The schemas of a schema."""
    schema, depth = place.schema, place.depth + 1
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        group = schema.get(keyword, {})
        _require(isinstance(group, Mapping), place, keyword, group, "an object of schemas", "Correct it.")
        for name, part in group.items():
            yield _Place(f"{place.path}/{keyword}/{name}", part, depth)
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        parts = schema.get(keyword, [])
        _require(isinstance(parts, list), place, keyword, parts, "a list of schemas", "Correct it.")
        for number, part in enumerate(parts):
            yield _Place(f"{place.path}/{keyword}/{number}", part, depth)
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield _Place(f"{place.path}/{keyword}", schema[keyword], depth)


def _require(ok: bool, place: _Place, keyword: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise RequestError(explain(f"structured_outputs.json#{place.path}/{keyword}", value, rule, remedy))
