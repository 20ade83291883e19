"""Discriminators: the field that tells the parts of a union apart, as OpenAPI and pydantic write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wedlm_core.grammar.schema_references import References

_DEEPEST = 16


def tags_are_listed(schema: Mapping[str, Any], references: References) -> bool:
    """Whether each part of a union lists the values of the field that its discriminator names."""
    name, parts = _tag(schema), list(_parts(schema, references))
    return name is not None and bool(parts) and all(_is_listed(part, name, references) for part in parts)


def needs_tag(schema: Mapping[str, Any], references: References) -> bool:
    """Whether a part of a union with a discriminator may come without the field: readers could not tell it then."""
    name = _tag(schema)
    return name is not None and any(name not in part.get("required", ()) for part in _parts(schema, references))


def _tag(schema: Mapping[str, Any]) -> str | None:
    given = schema.get("discriminator")
    name = given.get("propertyName") if isinstance(given, Mapping) else None
    return name if isinstance(name, str) else None


def _parts(schema: Any, references: References, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The parts of a union, of unions inside of it too."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        yield {}
        return
    inner = [part for keyword in ("oneOf", "anyOf") for part in schema.get(keyword, ())]
    if "$ref" in schema:
        inner = [references.target(schema)]
    if not inner and depth:
        yield schema
    for part in inner:
        yield from _parts(part, references, depth + 1)


def _is_listed(part: Mapping[str, Any], name: str, references: References) -> bool:
    properties = part.get("properties")
    field = properties.get(name) if isinstance(properties, Mapping) else None
    if isinstance(field, Mapping) and "$ref" in field:
        field = references.target(field)
    return isinstance(field, Mapping) and ("const" in field or "enum" in field)
