"""Parts of unions: their tags, values that two have in common, and values that one does not have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wedlm_core.grammar.patterns import matches
from wedlm_core.grammar.schema_bounds import is_number
from wedlm_core.grammar.schema_references import References

_ALL = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_TYPES: Mapping[str, frozenset[str]] = {**{name: frozenset({name}) for name in _ALL - {"fraction"}},
                                        "number": frozenset({"integer", "fraction"})}  # fmt: skip
_KINDS = ("null", "boolean", "number", "string", "array", "object")
_DEEPEST_UNION = 16
_RANGES = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
    ("number", "minimum", "maximum"),
)
_DEEPEST = 6  # of schemas inside each other that are compared
_MOST_CASES = 64
_MOST_STEPS = 40_000  # a few microseconds each

_All = Sequence[Any]
"""Schemas that a value obeys at once."""


class Comparison:
    """Compares schemas in canonical form (:mod:`wedlm_core.grammar.canonical`), within a budget of steps.

    Args:
        named: the definitions that references lead to.
        references_alone: leave keywords next to ``$ref`` out, as a reader may ignore them.
    """

    def __init__(self, named: Mapping[str, Any], *, references_alone: bool = False) -> None:
        self._named, self._left, self._references_alone = named, _MOST_STEPS, references_alone

    def are_disjoint(self, one: _All, other: _All, depth: int = 0) -> bool:
        """Whether no value obeys all of some schemas and all of others. False where that cannot be told."""
        if depth > _DEEPEST or self._left <= 0:
            return False
        cases = [self._cases(schemas) for schemas in (one, other)]
        if len(cases[0]) * len(cases[1]) > _MOST_CASES:
            return False
        return all(self._apart(left, right, depth) for left, right in itertools.product(*cases))

    def have_tags(self, unions: Sequence[_All]) -> bool:
        """Whether the parts of a union list their values, or those of a field that all require, each other ones."""
        cases = [self._cases(part) for part in unions]
        if not all(cases):
            return False
        if _differ([[_listed(case) for case in part] for part in cases]):
            return True
        every = [case for part in cases for case in part]
        if not all(frozenset.intersection(_ALL, *map(_types, case)) <= {"object"} for case in every):
            return False
        return any(
            _differ([[_listed(own) for case in part for own in self._cases(_field(case, name))] for part in cases])
            for name in sorted(frozenset.intersection(*map(_required, every)))
        )

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
        if self._references_alone and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
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
        """Whether no value obeys both, of any type that both allow."""
        both = [*one, *other]
        self._left -= 2 * len(both)
        types, listed = frozenset.intersection(_ALL, *map(_types, both)), _listed(both)
        if listed is not None:
            types &= {kind for kind, _ in listed}
        types = frozenset(kind for kind in types if not _is_out_of_range(kind, both))
        names = sorted(_required(both)) if types == {"object"} else ()
        return not types or any(self.are_disjoint(_field(one, name), _field(other, name), depth + 1) for name in names)


def _is_out_of_range(kind: str, schemas: _All) -> bool:
    """Whether the bounds of schemas leave no value of a type."""
    for ranged, least, most in _RANGES:
        if kind in _TYPES[ranged]:
            lows = [schema[least] for schema in schemas if is_number(schema.get(least))]
            highs = [schema[most] for schema in schemas if is_number(schema.get(most))]
            if lows and highs and max(lows) > min(highs):
                return True
    return False


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    if given is None:
        return _ALL
    listed = given if isinstance(given, list) else [given]
    return frozenset().union(*(_TYPES.get(kind, _ALL) for kind in listed if isinstance(kind, str)))


def _required(schemas: _All) -> frozenset[str]:
    """The fields that some of the schemas require."""
    return frozenset(name for schema in schemas for name in schema.get("required", ()) if isinstance(name, str))


def _listed(schemas: _All) -> list[tuple[str, Any]] | None:
    """The values that all schemas have which list any; None where none does."""
    lists = [values for schema in schemas if (values := _values(schema)) is not None]
    return [value for value in lists[0] if all(value in values for values in lists[1:])] if lists else None


def _differ(groups: Sequence[Sequence[list[tuple[str, Any]] | None]]) -> bool:
    """Whether the values of each group are listed, scalars, and not those of another group."""
    seen = set[tuple[str, Any]]()
    for group in groups:
        own = set[tuple[str, Any]]()
        for values in group:
            if values is None or any(isinstance(value, (list, dict)) for _, value in values):
                return False
            own.update(values)
        if own & seen:
            return False
        seen |= own
    return True


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


def tags_are_listed(schema: Mapping[str, Any], references: References) -> bool:
    """Whether each part of a union lists the values of the field that its discriminator names."""
    name, parts = _tag(schema), list(_union_parts(schema, references))
    return name is not None and bool(parts) and all(_is_listed(part, name, references) for part in parts)


def needs_tag(schema: Mapping[str, Any], references: References) -> bool:
    """Whether a part of a union with a discriminator may come without the field: readers could not tell it then."""
    name = _tag(schema)
    return name is not None and any(name not in part.get("required", ()) for part in _union_parts(schema, references))


def _tag(schema: Mapping[str, Any]) -> str | None:
    given = schema.get("discriminator")
    name = given.get("propertyName") if isinstance(given, Mapping) else None
    return name if isinstance(name, str) else None


def _union_parts(schema: Any, references: References, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The parts of a union, of unions inside of it too."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST_UNION:
        yield {}
        return
    inner = [part for keyword in ("oneOf", "anyOf") for part in schema.get(keyword, ())]
    if "$ref" in schema:
        inner = [references.target(schema)]
    if not inner and depth:
        yield schema
    for part in inner:
        yield from _union_parts(part, references, depth + 1)


def _is_listed(part: Mapping[str, Any], name: str, references: References) -> bool:
    properties = part.get("properties")
    field = properties.get(name) if isinstance(properties, Mapping) else None
    if isinstance(field, Mapping) and "$ref" in field:
        field = references.target(field)
    return isinstance(field, Mapping) and ("const" in field or "enum" in field)


def negation(schema: Any) -> Any:
    """The schema of all other values, of one in canonical form: ``required``, ``type``, ``anyOf``, ``allOf``.

    Raises:
        ValueError: it is of another shape.
    """
    if isinstance(schema, bool):
        return not schema
    parts = [_without(keyword, value) for keyword, value in schema.items() if not _is_empty(keyword, value)]
    if not parts:
        return False
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _is_empty(keyword: str, value: Any) -> bool:
    """Whether a keyword allows every value."""
    return keyword == "properties" and all(part is True or part == {} for part in value.values())


def _without(keyword: str, value: Any) -> Any:
    if keyword == "required":
        missing = [{"type": "object", "properties": {name: False}} for name in value]
        return {"anyOf": missing} if missing else False
    if keyword == "type":
        listed = {value} if isinstance(value, str) else set(value)
        if "integer" not in listed or "number" in listed:
            others = [kind for kind in _KINDS if kind not in listed]
            return {"type": others} if others else False
    if keyword in ("anyOf", "oneOf") and (keyword == "anyOf" or len(value) == 1):
        return {"allOf": [negation(part) for part in value]}
    if keyword == "allOf":
        return {"anyOf": [negation(part) for part in value]}
    if keyword == "enum" and all(isinstance(item, bool) or item is None for item in value):
        return _without_constants(value)
    if keyword == "const" and (isinstance(value, bool) or value is None):
        return _without_constants([value])
    raise ValueError("no other keywords express its negation")


def _without_constants(values: list[Any]) -> Mapping[str, Any]:
    left = [value for value in (None, False, True) if not any(value is item for item in values)]
    others = {"type": [kind for kind in _KINDS if kind not in ("null", "boolean")]}
    return {"anyOf": [others, {"enum": left}]} if left else others
