"""Which JSON schemas are taken: a keyword that would not be enforced is an error, never ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from wedlm_core.grammar.canonical import canonical
from wedlm_core.grammar.keywords import FORMATS, keyword_fault
from wedlm_core.grammar.patterns import pattern_fault
from wedlm_core.grammar.schema_bounds import LARGEST, exact_bounds, is_exact, is_number
from wedlm_core.grammar.schema_references import Place, References, definitions, subschemas
from wedlm_core.grammar.unions import tags_are_listed

_DEEPEST = 64
_MOST_NODES = 20_000
_MOST_ITEMS = 10_000
_MOST_LEVELS = 400  # references followed: the stack of the backend ends at about 2,000
_MOST_PATTERNS, _MOST_VISITS = 12, 200_000  # the time and memory of the backend double with each pattern
_ANY_NAME = "*"
_MOST_STEPS = 10_000  # of a multiple: the backend's time to compile grows with its square
_MOST_COPIED = 5_000_000
_OBJECTS = ("properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NAMING = ("properties", "required", "dependencies", "dependentRequired", "dependentSchemas")
_UNSPELLED = "control characters in it have no short form in JSON"


def check_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a schema that would not be enforced, or is too large; return its canonical form.

    Raises:
        RequestError: the message names the place in the schema, the rule and the remedy.
    """
    checker = _Checker(References(schema))
    made = canonical(schema, checker.references, checker.check)
    levels, patterns = _levels(definitions(made)), _most_patterns(made)
    rule = f"at most {_MOST_LEVELS} schemas inside each other, references followed"
    Place(schema).require(levels <= _MOST_LEVELS, "$ref", rule, "Simplify it.", value=f"more than {_MOST_LEVELS}")
    Place(schema).require(patterns <= _MOST_PATTERNS, "pattern", f"at most {_MOST_PATTERNS} patterns for one text",
                          "Simplify it.", value=patterns)  # fmt: skip
    return made


def _levels(named: Mapping[str, Any]) -> int:
    """How deep the schema lies that is deepest, references followed, a definition once on each way."""
    deepest, done, todo = 0, dict[int, int](), [(named["#"], 1, frozenset[str]())]
    while todo and deepest <= _MOST_LEVELS:
        part, level, before = todo.pop()
        if not isinstance(part, Mapping) or done.get(id(part), 0) >= level:
            continue
        done[id(part)], deepest = level, max(deepest, level)
        todo += [(inner, level + 1, before) for at, inner in subschemas(part) if not at.startswith("$defs/")]
        name = part.get("$ref")
        if isinstance(name, str) and name in named and name not in before:
            todo.append((named[name], level + 1, before | {name}))
    return deepest


def _most_patterns(made: Mapping[str, Any]) -> int:
    """A bound of the patterns for one text: all patterns of a field's name, and of any name, inside of an ``allOf``."""
    named, unions, seen = definitions(made), list[dict[str, set[str]]](), set[tuple[int, str, int]]()
    todo: list[tuple[Any, str, int]] = [(made, "", -1)]
    while todo and len(seen) < _MOST_VISITS:
        part, name, union = todo.pop()
        if not isinstance(part, Mapping) or (id(part), name, union) in seen:
            continue
        seen.add((id(part), name, union))
        if union < 0 and "allOf" in part:
            union = len(unions)
            unions.append({})
        if union >= 0:
            own = (f"{keyword} {part[keyword]}" for keyword in ("pattern", "format") if keyword in part)
            unions[union].setdefault(name, set()).update(own)
        inner = [("allOf/", named[part["$ref"]])] if part.get("$ref") in named else []
        for pointer, value in [*inner, *subschemas(part)]:
            keyword, _, field = pointer.partition("/")
            is_same, is_item = keyword in ("anyOf", "oneOf", "allOf"), keyword in ("items", "prefixItems")
            named_field = field if keyword == "properties" else f"{name.rstrip('[]')}[]" if is_item else _ANY_NAME
            todo.append((value, name if is_same else named_field, union))
    return max((len(own | found.get(_ANY_NAME, set())) for found in unions for own in found.values()), default=0)


class _Checker:
    """Checks the parts of a schema, each once, as they are read."""

    def __init__(self, references: References) -> None:
        self.references = references
        self._seen, self._steps = set[int](), Fraction(1)

    def check(self, place: Place) -> None:
        """Check a part.

        Raises:
            RequestError: it breaks a rule.
        """
        part = place.part
        place.require(isinstance(part, Mapping), "schema", "a schema is an object, true or false", value=part)
        if id(part) in self._seen:
            return
        self._seen.add(id(part))
        place.require(len(self._seen) <= _MOST_NODES, "parts", "a schema of fewer", "Simplify it.",
                      value=f"more than {_MOST_NODES}")  # fmt: skip
        place.require(place.depth <= _DEEPEST, "depth", f"at most {_DEEPEST} schemas inside each other",
                      'Flatten it, or name the parts under "$defs".', value=place.depth)  # fmt: skip
        _check_keywords(place)
        _check_shapes(place)
        _check_counts(place)
        _check_numbers(place)
        _check_texts(place)
        if "multipleOf" in part:
            self._steps = _common_multiple(place, self._steps)
        place.require("discriminator" not in part or tags_are_listed(part, self.references), "discriminator",
                      'a discriminator only points: each part of "oneOf" has to list the values of the field',
                      'Write {"const": ...} for the field in each part, or remove the discriminator.')  # fmt: skip


def _check_keywords(place: Place) -> None:
    part, items, named = place.part, place.part.get("items"), place.part.get("format")
    for keyword, value in part.items():
        fault = keyword_fault(keyword, value, part, place.draft)
        place.require(fault is None, keyword, *(fault or ("", "")))
    place.require("format" not in part or (isinstance(named, str) and named in FORMATS), "format",
                  f"one of {', '.join(sorted(FORMATS))}", 'Use "pattern", or remove it.')  # fmt: skip
    # A list of schemas in items is of older drafts, as is additionalItems, which has no effect without one.
    has_list = isinstance(items, list)
    place.require(not has_list or (place.draft or 0) < 9, "items", "a schema; a list of them is of older drafts",
                  'Use "prefixItems".')  # fmt: skip
    place.require("prefixItems" not in part or not (has_list or "additionalItems" in part), "prefixItems",
                  "older drafts have other keywords for it",
                  'Use "prefixItems", and "items" for the items after them.')  # fmt: skip


def _check_shapes(place: Place) -> None:
    part = place.part
    for keyword in _OBJECTS:
        place.require(isinstance(part.get(keyword, {}), Mapping), keyword, "an object of schemas")
    for keyword in _LISTS:
        place.require(isinstance(part.get(keyword, []), list), keyword, "a list of schemas")
    lists = [("required", part.get("required", []))]
    lists += [("dependentRequired", value) for value in part.get("dependentRequired", {}).values()]
    lists += [("dependencies", value) for value in part.get("dependencies", {}).values() if isinstance(value, list)]
    for keyword, names in lists:
        fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
        place.require(fits, keyword, "a list of names", value=names)
    copies = len(part.get("properties", {})) * len(json.dumps(part.get("patternProperties", {})))
    place.require(copies <= _MOST_COPIED, "patternProperties", f'at most {_MOST_COPIED} in copies for all "properties"',
                  "Name fewer properties, or simplify the patterns.", value=f"{copies} characters")  # fmt: skip


def _check_counts(place: Place) -> None:
    part = place.part
    for keyword in _COUNTS:
        value = part.get(keyword, 0)
        place.require(is_number(value) and value >= 0 and value == int(value), keyword, "a whole number")
        if keyword in ("minItems", "maxItems", "minLength"):
            place.require(value <= _MOST_ITEMS, keyword, f"at most {_MOST_ITEMS}", "Lower it.")
    named, least = set(part.get("required", [])), part.get("minProperties", 0)
    place.require(least <= len(named) + 1, "minProperties", 'at most one more than the names in "required", as a name '
                  'may come twice', 'Name them in "required".')  # fmt: skip


def _check_numbers(place: Place) -> None:
    part, draft = place.part, place.draft
    for sign, closed, opened in ((1, "minimum", "exclusiveMinimum"), (-1, "maximum", "exclusiveMaximum")):
        for keyword in (closed, opened):
            value = part.get(keyword)
            if keyword == opened and isinstance(value, bool):
                place.require((draft or 4) == 4 and (closed in part or not value), keyword,
                              f"true and false are of draft 4, next to {closed}",
                              "Write the bound itself.")  # fmt: skip
            elif keyword in part:
                place.require(is_number(value) and (keyword == closed or draft != 4), keyword, "a number, and an open "
                              "bound is true or false in draft 4", "Correct it, or name another draft.")  # fmt: skip
                if sign * value >= -LARGEST:
                    _check_number(place, keyword, value)
    if "multipleOf" not in part or (is_number(part["multipleOf"]) and part["multipleOf"] > 0):
        for keyword, bound in exact_bounds(part).items():
            place.require(abs(bound) <= LARGEST, keyword, "a number from -2**53 to 2**53 next to the bound",
                          'Use a string with a "pattern".', value=bound)  # fmt: skip
    for keyword in ("const", "enum"):
        for value in filter(is_number, _scalars(part.get(keyword))):
            _check_number(place, keyword, value)


def _check_number(place: Place, keyword: str, value: float) -> None:
    place.require(abs(value) <= LARGEST, keyword, "a number from -2**53 to 2**53: larger ones would be rounded",
                  'Use a string with a "pattern".', value=value)  # fmt: skip
    place.require(is_exact(value), keyword, "a number of at most 15 significant digits and 22 decimals: longer ones "
                  "may be rounded", "Round it.", value=value)  # fmt: skip


def _common_multiple(place: Place, steps: Fraction) -> Fraction:
    """The least common multiple of all ``multipleOf`` so far: the backend may have to meet all of them at once."""
    value = place.part["multipleOf"]
    place.require(is_number(value) and value > 0, "multipleOf", "a number above 0")
    exact = Fraction(value)
    place.require(exact == Fraction(str(value)), "multipleOf", "a fraction of 2, such as 0.5: validators compute in "
                  "binary and reject multiples of others", "Use an integer of the smallest unit.")  # fmt: skip
    below = math.lcm(steps.denominator, exact.denominator)
    both = math.lcm(int(steps * below), int(exact * below))
    place.require(both <= _MOST_STEPS, "multipleOf", f"the least common multiple of all of them is {both}, at most "
                  f"{_MOST_STEPS} are compiled", "Lower it, or check it afterwards.")  # fmt: skip
    return Fraction(both, below)


def _check_texts(place: Place) -> None:
    part = place.part
    for keyword in ("const", "enum"):
        for value in _scalars(part.get(keyword)):
            fits = not isinstance(value, str) or _is_spelled(value)
            place.require(fits, keyword, _UNSPELLED, "Remove them.", value=value)
    for keyword in _NAMING:
        for name in part.get(keyword, ()):
            place.require(_is_spelled(name), keyword, _UNSPELLED, "Rename it.", value=name)
    own = [part["pattern"]] if "pattern" in part else []
    for pattern in [*own, *part.get("patternProperties", ())]:
        fault = pattern_fault(pattern) if isinstance(pattern, str) else "a pattern is a text"
        place.require(fault is None, "pattern", fault or "", "Write it with syntax that all regexes share.",
                      value=pattern)  # fmt: skip


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
