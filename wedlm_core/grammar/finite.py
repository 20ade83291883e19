"""Whether a JSON schema has a finite value: one whose values all have to contain such a value again has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wedlm_core.grammar.schema_references import definitions

_MOST_VISITS = 200_000
_CONTAINERS = {"object", "array"}


def has_finite_value(schema: Mapping[str, Any]) -> bool:
    """Whether a schema in canonical form has one, and each of its definitions, as an output that enters it has to end.

    True where that cannot be told, as with thousands of references.
    """
    return _Finder(schema).finds()


class _Finder:
    """Removes definitions with a finite value from the others, until a pass finds no more."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._endless, self._visits = definitions(schema), 0

    def finds(self) -> bool:
        while found := [reference for reference, target in self._endless.items() if self._is_finite(target)]:
            for reference in found:
                del self._endless[reference]
        return not self._endless

    def _is_finite(self, schema: Any) -> bool:
        """Whether a part has a finite value, as far as definitions are known to."""
        self._visits += 1
        if not isinstance(schema, Mapping) or self._visits > _MOST_VISITS:
            return True  # also of a part that allows nothing: the backend reports that
        if schema.get("$ref") in self._endless or not all(self._is_finite(part) for part in _parts(schema, "allOf")):
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
