"""Whether two schemas have a value in common, as far as types, listed values and required fields tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wedlm_core.grammar.bounds import is_number
from wedlm_core.grammar.names import matches

__all__ = ["Comparison"]

_ALL = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_TYPES: Mapping[str, frozenset[str]] = {**{name: frozenset({name}) for name in _ALL - {"fraction"}},
                                        "number": frozenset({"integer", "fraction"})}  # fmt: skip
_RANGES = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
    ("number", "minimum", "maximum"),
)
_DEEPEST = 6
_MOST_CASES = 64
_MOST_STEPS = 300_000  # about a microsecond each

_All = Sequence[Any]
"""Schemas that a value obeys at once."""


class Comparison:
    """Compares schemas in canonical form (:mod:`wedlm_core.grammar.canonical`), within a budget of steps.

    Args:
        named: the definitions that references lead to.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._left = named, _MOST_STEPS

    def are_disjoint(self, one: _All, other: _All) -> bool:
        """Whether no value obeys all of some schemas and all of others. False where that cannot be told."""
        return self._disjoint(one, other, 0)

    def _disjoint(self, one: _All, other: _All, depth: int) -> bool:
        if depth > _DEEPEST or self._left <= 0:
            return False
        cases = [self._cases(schemas) for schemas in (one, other)]
        if len(cases[0]) * len(cases[1]) > _MOST_CASES:
            return False
        return all(self._apart(left, right, depth) for left, right in itertools.product(*cases))

    def _cases(self, schemas: _All) -> list[list[Mapping[str, Any]]]:
        """The alternatives of schemas, each without references, ``allOf``, ``anyOf`` and ``oneOf``."""
        cases: list[list[Mapping[str, Any]]] = [[]]
        for schema in schemas:
            cases = [case + more for case in cases for more in self._flat(schema, 0)][: _MOST_CASES + 1]
        return cases

    def _flat(self, schema: Any, depth: int) -> list[list[Mapping[str, Any]]]:
        self._left -= 1
        if schema is False:
            return []
        if not isinstance(schema, Mapping) or depth > _DEEPEST or self._left <= 0:
            return [[]]
        found: list[list[Mapping[str, Any]]] = [[schema]]
        inner = list(schema.get("allOf", ()))
        inner += [self._named[schema["$ref"]]] if schema.get("$ref") in self._named else []
        for part in inner:
            found = [case + more for case in found for more in self._flat(part, depth + 1)]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = [case for part in schema[keyword] for case in self._flat(part, depth + 1)]
                found = [case + more for case in found for more in options][: _MOST_CASES + 1]
        return found

    def _apart(self, one: list[Mapping[str, Any]], other: list[Mapping[str, Any]], depth: int) -> bool:
        both = [*one, *other]
        types = frozenset.intersection(_ALL, *map(_types, both))
        lists = [values for schema in both if (values := _values(schema)) is not None]
        if lists:
            common = [value for value in lists[0] if all(value in values for values in lists[1:])]
            types &= {kind for kind, _ in common}
        return all(self._apart_as(kind, one, other, depth) for kind in types)

    def _apart_as(self, kind: str, one: list[Mapping[str, Any]], other: list[Mapping[str, Any]], depth: int) -> bool:
        """Whether no value of one type obeys both."""
        both = [*one, *other]
        for ranged, least, most in _RANGES:
            if kind == ranged or (ranged == "number" and kind in ("integer", "fraction")):
                lows = [schema[least] for schema in both if is_number(schema.get(least))]
                highs = [schema[most] for schema in both if is_number(schema.get(most))]
                if lows and highs and max(lows) > min(highs):
                    return True
        if kind != "object":
            return False
        names = {name for schema in both for name in schema.get("required", ()) if isinstance(name, str)}
        return any(self._disjoint(_field(one, name), _field(other, name), depth + 1) for name in sorted(names))


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    if given is None:
        return _ALL
    listed = given if isinstance(given, list) else [given]
    return frozenset().union(*(_TYPES.get(kind, _ALL) for kind in listed if isinstance(kind, str)))


def _values(schema: Mapping[str, Any]) -> list[tuple[str, Any]] | None:
    """The listed values of a schema with their types; None where it lists none, or lists more than scalars."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return [(_kind(value), value) for value in listed] if isinstance(listed, list) else None


def _kind(value: Any) -> str:
    if isinstance(value, float):
        return "integer" if value == int(value) else "fraction"
    return {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}.get(type(value), "null")


def _field(schemas: list[Mapping[str, Any]], name: str) -> list[Any]:
    """The schemas that a field of an object obeys."""
    return [part for schema in schemas for part in _own_field(schema, name)]


def _own_field(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    known = schema.get("properties", {})
    if name in known:
        yield known[name]
    yield from (part for pattern, part in schema.get("patternProperties", {}).items() if matches(pattern, name))
    if name not in known and "patternProperties" not in schema and "additionalProperties" in schema:
        yield schema["additionalProperties"]
