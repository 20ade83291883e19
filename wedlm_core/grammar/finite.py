"""Whether a JSON schema has a finite value: one whose values all have to contain such a value again has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wedlm_core.json_pointer import schema_at

__all__ = ["has_finite_value", "references"]

_MOST_VISITS = 200_000
_CONTAINERS = {"object", "array"}


class _TooManyError(Exception):
    """More parts were looked at than there is time for."""


def has_finite_value(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has one, and each part that a reference leads to, as an output that enters it has to end.

    True where that cannot be told, as with thousands of references.

    References are known to lead to a finite value, or not yet: those that do are added until no more are found.
    """
    finder = _Finder(schema)
    try:
        return finder.finds()
    except _TooManyError:
        return True


class _Finder:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema, self._finite, self._visits = schema, set[str](), 0

    def finds(self) -> bool:
        left = {reference: schema_at(self._schema, reference) for reference in references(self._schema)}
        while found := {reference for reference, target in left.items() if self._is_finite(target)}:
            self._finite |= found
            left = {reference: target for reference, target in left.items() if reference not in found}
        return not left and self._is_finite(self._schema)

    def _is_finite(self, schema: Any) -> bool:
        """Whether a part has a finite value, as far as references are known to."""
        self._visits += 1
        if self._visits > _MOST_VISITS:
            raise _TooManyError
        if not isinstance(schema, Mapping):
            return True  # also of one that allows nothing: the backend says so
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._finite:
            return False
        if not all(self._is_finite(part) for part in _parts(schema, "allOf")):
            return False
        for keyword in ("anyOf", "oneOf"):
            if (parts := _parts(schema, keyword)) and not any(self._is_finite(part) for part in parts):
                return False
        return self._has_own(schema)

    def _has_own(self, schema: Mapping[str, Any]) -> bool:
        """Whether a part's own keywords, without the schemas that it combines, leave a finite value."""
        given = schema.get("type")
        types = {name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)}
        if "const" in schema or "enum" in schema or not types or types - _CONTAINERS:
            return True
        return ("object" in types and self._has_object(schema)) or ("array" in types and self._has_array(schema))

    def _has_object(self, schema: Mapping[str, Any]) -> bool:
        named, others = schema.get("properties"), schema.get("additionalProperties", True)
        named = named if isinstance(named, Mapping) else {}
        others = True if "patternProperties" in schema or others is False else others
        return all(
            self._is_finite(named.get(name, others)) for name in _parts(schema, "required") if isinstance(name, str)
        )

    def _has_array(self, schema: Mapping[str, Any]) -> bool:
        least, first = schema.get("minItems", 0), _parts(schema, "prefixItems")
        if not isinstance(least, int) or not all(self._is_finite(part) for part in first[:least]):
            return not isinstance(least, int)
        return least <= len(first) or self._is_finite(schema.get("items", True))


def _parts(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    given = schema.get(keyword)
    return given if isinstance(given, list) else []


def references(schema: Any) -> Iterator[str]:
    """All references inside of a schema."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
