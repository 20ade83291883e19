"""Names of fields by ``patternProperties`` that ``properties`` has as well."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer


def closed_names(schema: dict[str, Any]) -> dict[str, Any]:
    """An object's schema without ``patternProperties`` where ``properties`` has all names that they match.

    The backend would expect one more name that no text spells.
    """
    others = schema.get("additionalProperties", True)
    by_pattern = schema["patternProperties"]
    named = dict(schema.get("properties", {}))
    for name in schema.get("required", ()):
        named.setdefault(name, others if not any(matches(pattern, name) for pattern in by_pattern) else True)
    allowed = tuple((pattern, part is not False) for pattern, part in by_pattern.items())
    if _has_more(tuple(named), allowed, others is not False):
        return schema
    for name, part in named.items():
        found = [other for pattern, other in by_pattern.items() if matches(pattern, name)]
        named[name] = {"allOf": [part, *found]} if found else part
    rest = {keyword: value for keyword, value in schema.items() if keyword != "patternProperties"}
    return rest | {"properties": named, "additionalProperties": False}


@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, as the backend reads it; false where it does not read it."""
    return _taken({"type": "string", "pattern": pattern}, json.dumps(name, ensure_ascii=False)) or False


@lru_cache(maxsize=1024)
def _has_more(names: tuple[str, ...], patterns: tuple[tuple[str, bool], ...], is_open: bool) -> bool:
    """Whether an object may have a field of another name. True where the backend cannot tell."""
    properties = dict.fromkeys(names, False)
    schema = {"type": "object", "minProperties": 1, "properties": properties, "patternProperties": dict(patterns),
              "additionalProperties": is_open}  # fmt: skip
    return _taken(schema, '{"') is not False


def _taken(schema: dict[str, Any], text: str) -> bool | None:
    """Whether a text is, or begins, a value of a schema; None where the backend does not compile it."""
    made = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    matcher = LLMatcher(_bytes(), made, log_level=0)
    return None if matcher.is_error() else bool(matcher.consume_tokens(list(text.encode())))


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")
