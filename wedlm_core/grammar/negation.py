"""Schemas of the values that another schema does not have, where other keywords than ``not`` express them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = ("null", "boolean", "number", "string", "array", "object")


def negation(schema: Any) -> Any:
    """The schema of all other values, in canonical form.

    Args:
        schema: in canonical form; of ``required``, ``type``, ``anyOf`` and ``allOf`` of such, or true or false.

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
            others = [kind for kind in _TYPES if kind not in listed]
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
    others = {"type": [kind for kind in _TYPES if kind not in ("null", "boolean")]}
    return {"anyOf": [others, {"enum": left}]} if left else others
