"""Which JSON schemas are taken: a keyword that would not be enforced is an error, never ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from wedlm_core.errors import RequestError, explain
from wedlm_core.grammar.canonical import NotExpressedError, canonical
from wedlm_core.grammar.discriminators import tags_are_listed
from wedlm_core.grammar.finite import has_finite_value
from wedlm_core.grammar.formats import FORMATS
from wedlm_core.grammar.keywords import ENFORCED, NOTES, draft_of, keyword_fault
from wedlm_core.grammar.patterns import pattern_fault
from wedlm_core.grammar.schema_bounds import LARGEST, exact_bounds, is_exact, is_number
from wedlm_core.grammar.schema_limits import limit_fault
from wedlm_core.grammar.schema_references import References, subschemas

__all__ = ["ENFORCED", "FORMATS", "NOTES", "check_schema"]

_DEEPEST = 64
_MOST_NODES = 20_000
_MOST_ITEMS = 10_000
_MOST_STEPS = 10_000  # of a multiple: the backend's time to compile grows with its square
_MOST_COPIED = 5_000_000
_OBJECTS = ("properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NOT_EXPRESSED = {
    "not": ("this not would not be enforced", 'State the allowed values with "enum", "anyOf" or "pattern".'),
    "oneOf": ("its parts cannot be told apart by their \"$ref\" alone, and this draft ignores the keywords next to it",
              'Write {"allOf": [{"$ref": ...}, {...}]}, or name draft 2019-09 or a newer one.'),
}  # fmt: skip
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


@dataclass(frozen=True)
class _Place:
    """A schema inside of the schema."""

    path: str
    schema: Any
    depth: int
    draft: int | None = None


def check_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a schema that would not be enforced, or is too large; return its canonical form.

    Raises:
        RequestError: the message names the place in the schema, the rule and the remedy.
    """
    whole, places = _Place("", schema, 0), dict[int, _Place]()
    finder, steps, todo = References(schema), Fraction(1), [whole]
    while todo:
        place = todo.pop()
        if isinstance(place.schema, bool) or id(place.schema) in places:
            continue
        _require(isinstance(place.schema, Mapping), place, "schema", place.schema, "a schema is an object, true or "
                 "false", "Correct it.")  # fmt: skip
        if "$schema" in place.schema:
            place = replace(place, draft=_draft(place))
        places[id(place.schema)] = place
        _require(len(places) <= _MOST_NODES, place, "parts", f"more than {_MOST_NODES}", "a schema of fewer",
                 "Simplify it.")  # fmt: skip
        _require(place.depth <= _DEEPEST, place, "depth", place.depth, f"at most {_DEEPEST} schemas inside each other",
                 'Flatten it, or name the parts under "$defs".')  # fmt: skip
        _check_keywords(place)
        _check_shapes(place)
        _check_numbers(place)
        _check_texts(place)
        steps = _common_multiple(place, steps)
        todo.extend(_inside(place, finder))
        discriminator = place.schema.get("discriminator")
        _require(discriminator is None or tags_are_listed(place.schema, finder), place, "discriminator", discriminator,
                 'a discriminator only points: each part of "oneOf" has to list the values of the field',
                 'Write {"const": ...} for the field in each part, or remove the discriminator.')  # fmt: skip
    try:
        made = canonical(schema)
    except NotExpressedError as error:
        place = places.get(id(error.part), whole)
        _require(False, place, error.keyword, place.schema.get(error.keyword), *_NOT_EXPRESSED[error.keyword])
        raise
    reference = next((place.schema["$ref"] for place in places.values() if "$ref" in place.schema), None)
    _require(has_finite_value(made), whole, "$ref", reference,
             "every value of a part would contain itself, so that no output could end",
             "Leave the field out of \"required\", or allow null beside it.")  # fmt: skip
    fault = limit_fault(made)
    _require(fault is None, whole, *(fault or ("", "", "")), "Simplify it.")
    return made


def _draft(place: _Place) -> int | None:
    try:
        return draft_of(place.schema)
    except ValueError:
        _require(False, place, "$schema", place.schema["$schema"], "no known draft of JSON schema",
                 'Use "https://json-schema.org/draft/2020-12/schema", or remove it.')  # fmt: skip
        raise


def _check_keywords(place: _Place) -> None:
    schema = place.schema
    for keyword, value in schema.items():
        fault = keyword_fault(keyword, value, schema, place.draft)
        _require(fault is None, place, keyword, value, *(fault or ("", "")))
    if "format" in schema:
        known = ", ".join(sorted(FORMATS))
        _require(isinstance(schema["format"], str) and schema["format"] in FORMATS, place, "format", schema["format"],
                 f"one of {known}", 'Use "pattern", or remove it.')  # fmt: skip
    _check_tuples(place)


def _check_tuples(place: _Place) -> None:
    """A list of schemas in ``items`` is of older drafts, as is ``additionalItems``, which has no effect without one."""
    schema, items = place.schema, place.schema.get("items")
    has_list = isinstance(items, list)
    _require(not has_list or (place.draft or 0) < 9, place, "items", items,
             "a schema; a list of them is of older drafts", 'Use "prefixItems".')  # fmt: skip
    _require("prefixItems" not in schema or not (has_list or "additionalItems" in schema), place, "prefixItems",
             schema.get("prefixItems"), "older drafts have other keywords for it",
             'Use "prefixItems", and "items" for the items after them.')  # fmt: skip


def _check_shapes(place: _Place) -> None:
    schema = place.schema
    for keyword in _OBJECTS:
        group = schema.get(keyword, {})
        _require(isinstance(group, Mapping), place, keyword, group, "an object of schemas", "Correct it.")
    for keyword in _LISTS:
        parts = schema.get(keyword, [])
        _require(isinstance(parts, list), place, keyword, parts, "a list of schemas", "Correct it.")
    lists = [("required", schema.get("required", []))]
    lists += [("dependentRequired", value) for value in schema.get("dependentRequired", {}).values()]
    lists += [("dependencies", value) for value in schema.get("dependencies", {}).values() if isinstance(value, list)]
    for keyword, names in lists:
        fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
        _require(fits, place, keyword, names, "a list of names", "Correct it.")
    for keyword in _COUNTS:
        value = schema.get(keyword, 0)
        _require(is_number(value) and value >= 0 and value == int(value), place, keyword, value, "a whole number",
                 "Correct it.")  # fmt: skip
        if keyword in ("minItems", "maxItems", "minLength"):
            _require(value <= _MOST_ITEMS, place, keyword, value, f"at most {_MOST_ITEMS}", "Lower it.")
    copies = len(schema.get("properties", {})) * len(json.dumps(schema.get("patternProperties", {})))
    _require(copies <= _MOST_COPIED, place, "patternProperties", f"{copies} characters", f"at most {_MOST_COPIED} "
             'in copies for all "properties"', "Name fewer properties, or simplify the patterns.")  # fmt: skip
    named, least = set(schema.get("required", [])), schema.get("minProperties", 0)
    _require(least <= len(named) + 1, place, "minProperties", least, "at most one more than the names in "
             '"required", as a name may come twice', 'Name them in "required".')  # fmt: skip


def _check_numbers(place: _Place) -> None:
    schema, draft = place.schema, place.draft
    for sign, (closed, opened) in ((1, _LOWER), (-1, _UPPER)):
        for keyword in (closed, opened):
            value = schema.get(keyword)
            if keyword == opened and isinstance(value, bool):
                _require((draft or 4) == 4 and (closed in schema or not value), place, keyword, value, "true and false "
                         f"are of draft 4, next to {closed}", "Write the bound itself.")  # fmt: skip
            elif keyword in schema:
                _require(is_number(value) and (keyword == closed or draft != 4), place, keyword, value, "a number, and "
                         "an open bound is true or false in draft 4", "Correct it, or name another draft.")  # fmt: skip
                if sign * value >= -LARGEST:
                    _check_number(place, keyword, value)
    if "multipleOf" not in schema or (is_number(schema["multipleOf"]) and schema["multipleOf"] > 0):
        for keyword, bound in exact_bounds(schema).items():
            _require(abs(bound) <= LARGEST, place, keyword, bound, "a number from -2**53 to 2**53 next to the bound",
                     "Use a string with a \"pattern\".")  # fmt: skip
    for keyword in ("const", "enum"):
        for value in _scalars(schema.get(keyword)):
            if is_number(value):
                _check_number(place, keyword, value)


def _check_number(place: _Place, keyword: str, value: float) -> None:
    _require(abs(value) <= LARGEST, place, keyword, value, "a number from -2**53 to 2**53: larger ones would be "
             "rounded", 'Use a string with a "pattern".')  # fmt: skip
    _require(is_exact(value), place, keyword, value, "a number of at most 15 significant digits and 22 decimals: "
             "longer ones may be rounded", "Round it.")  # fmt: skip


def _common_multiple(place: _Place, steps: Fraction) -> Fraction:
    """The least common multiple of all ``multipleOf`` so far: the backend may have to meet all of them at once."""
    if "multipleOf" not in place.schema:
        return steps
    value = place.schema["multipleOf"]
    _require(is_number(value) and value > 0, place, "multipleOf", value, "a number above 0", "Correct it.")
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
    for keyword in ("properties", "required", "dependencies", "dependentRequired", "dependentSchemas"):
        for name in schema.get(keyword, ()):
            _require(_is_spelled(name), place, keyword, name, "control characters in it have no short form in JSON",
                     "Rename it.")  # fmt: skip
    own = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*own, *schema.get("patternProperties", ())]:
        fault = pattern_fault(pattern) if isinstance(pattern, str) else "a pattern is a text"
        _require(fault is None, place, "pattern", pattern, fault or "", "Write it with syntax that all regexes share.")


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


def _is_spelled(text: str) -> bool:
    return all((char >= " " and char != "\x7f") or char in "\n\r\t\b\f" for char in text)


def _inside(place: _Place, finder: References) -> Iterator[_Place]:
    """The schemas that a schema is made of. Definitions come in where a reference leads to them."""
    for pointer, part in subschemas(place.schema):
        if not pointer.startswith(("$defs/", "definitions/")):
            yield _Place(f"{place.path}/{pointer}", part, place.depth + 1, place.draft)
    if "$ref" in place.schema:
        reference = place.schema["$ref"]
        try:
            target = finder.target(place.schema)
        except ValueError as error:
            _require(False, place, "$ref", reference, f"{error}", 'Refer to parts by "$ref": "#/$defs/...".')
            raise
        yield _Place(str(reference).partition("#")[2].rstrip("/"), target, 0, place.draft)


def _require(ok: bool, place: _Place, keyword: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise RequestError(explain(f"structured_outputs.json#{place.path}/{keyword}", value, rule, remedy))
