"""JSON schemas whose values are a regular language, as expressions over bytes.

The language is that of the backend, llguidance, to the byte. Whatever is not known to be the same is outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wedlm_core.grammar.json_texts import TEXT_KEYWORDS, spelled, texts
from wedlm_core.grammar.keywords import NOTES
from wedlm_core.grammar.numerals import float_text, integers, numbers
from wedlm_core.grammar.regular import (
    EMPTY,
    NOTHING,
    Either,
    Expression,
    Outside,
    Repeat,
    Text,
    optional,
    sequence,
)

__all__ = ["language_of"]

_DEEPEST = 64
_DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": True,
    "https://json-schema.org/draft/2019-09/schema": False,
    "http://json-schema.org/draft-07/schema": False,
}
"""Those that are understood, and whether ``prefixItems`` says something in them."""

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OWN: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset(_BOUNDS),
    "number": frozenset(_BOUNDS),
    "string": TEXT_KEYWORDS,
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
"""The keywords of each type that are understood."""


def language_of(schema: Any, separators: Sequence[str], space: Expression = EMPTY) -> Expression:
    """The texts of a schema's values.

    Args:
        schema: as the backend sees it, which has compiled it.
        separators: of items, and of keys and values.
        space: what may stand between any two parts; bytes of separators only.

    Raises:
        Outside: it is not of the subset.
    """
    return _Language(schema, separators, space).value(schema)


class _Language:
    """Space follows each part but the last: brackets, commas, colons, keys and values inside of others."""

    def __init__(self, whole: Any, separators: Sequence[str], space: Expression) -> None:
        self._whole, self._space = whole, space
        self._comma, self._colon = (sequence(Text(text=separator.encode()), space) for separator in separators)
        draft = str(whole.get("$schema", next(iter(_DRAFTS)))) if isinstance(whole, Mapping) else ""
        self._has_prefixes = _DRAFTS.get(draft.removesuffix("#"))
        self._open: list[str] = []  # references that are being followed
        self._named: dict[str, Expression] = {}

    def value(self, schema: Any) -> Expression:
        if schema is False:
            return NOTHING
        _require(self._has_prefixes is not None)
        _require(isinstance(schema, Mapping))
        _require("$id" not in schema and ("$schema" not in schema or schema is self._whole))
        keys = {key for key in schema if key not in NOTES and key not in ("$defs", "definitions")}
        for keyword, take in (
            ("$ref", self._reference), ("anyOf", self._either), ("oneOf", self._either), ("allOf", self._only)
        ):  # fmt: skip
            if keyword in keys and keys == {"allOf", *(keys & TEXT_KEYWORDS), "type"} and schema["type"] == "string":
                return self._texts_of_all(schema)
            if keyword in keys:
                _require(keys == {keyword})
                return take(schema[keyword])
        if "const" in keys or "enum" in keys:
            _require(keys <= {"const", "type"} or keys <= {"enum", "type"})
            values = [schema["const"]] if "const" in keys else _listed(schema["enum"])
            types = _types(schema) if "type" in keys else None
            return Either(parts=tuple(self._constant(v) for v in values if types is None or _is_of(v, types)))
        types = _types(schema)
        _require(keys <= {"type"}.union(*(_OWN[kind] for kind in types)))
        return Either(parts=tuple(self._typed(kind, schema) for kind in types))

    def _reference(self, name: Any) -> Expression:
        match = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", name) if isinstance(name, str) else None
        _require(match is not None and name not in self._open and len(self._open) < _DEEPEST)
        if name not in self._named:
            group = self._whole.get(match[1]) if match else None
            _require(isinstance(group, Mapping) and match is not None and match[2] in group)
            self._open.append(name)
            self._named[name] = self.value(group[match[2]])  # type: ignore[index]
            self._open.pop()
        return self._named[name]

    def _either(self, parts: Any) -> Expression:
        return Either(parts=tuple(self.value(part) for part in _listed(parts)))

    def _only(self, parts: Any) -> Expression:
        _require(len(_listed(parts)) == 1)
        return self.value(parts[0])

    def _texts_of_all(self, schema: Mapping[str, Any]) -> Expression:
        parts = _listed(schema["allOf"])
        _require(all(isinstance(part, Mapping) and part.keys() <= TEXT_KEYWORDS for part in parts))
        return texts(schema, *parts)

    def _constant(self, value: Any) -> Expression:
        if value is None or isinstance(value, bool):
            return Text(text=json.dumps(value).encode())
        if isinstance(value, (int, float)):
            text = float_text(value)
            _require(text is not None)
            return Text(text=(text or "").encode())
        if isinstance(value, str):
            return spelled(value)
        if isinstance(value, list):
            size = len(value)
            return self._bracketed("[]", self._items([self._constant(item) for item in value], NOTHING, size, size))
        _require(isinstance(value, Mapping))
        return self._fields([(name, self._constant(item), True) for name, item in value.items()])

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> Expression:
        if kind == "null":
            return Text(text=b"null")
        if kind == "boolean":
            return Either(parts=(Text(text=b"true"), Text(text=b"false")))
        if kind in ("integer", "number"):
            for keyword in _BOUNDS:
                _require(keyword not in schema or _is_number(schema[keyword]))
            made = (integers if kind == "integer" else numbers)(*(schema.get(keyword) for keyword in _BOUNDS))
            _require(made is not None)
            return made or NOTHING
        if kind == "string":
            return texts(schema)
        return self._array(schema) if kind == "array" else self._object(schema)

    def _array(self, schema: Mapping[str, Any]) -> Expression:
        _require("prefixItems" not in schema or self._has_prefixes is True)
        prefix = [self.value(part) for part in _listed(schema.get("prefixItems", []))]
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most is not None and least > most:
            return NOTHING
        if most is not None and most <= len(prefix):
            if "items" in schema:
                self.value(schema["items"])  # it has to be of the subset, as the rest
            return self._bracketed("[]", self._items(prefix[:most], NOTHING, least, most))
        _require("items" in schema)
        return self._bracketed("[]", self._items(prefix, self.value(schema["items"]), least, most))

    def _items(self, prefix: Sequence[Expression], rest: Expression, least: int, most: int | None) -> Expression:
        """``least`` to ``most`` items with commas between them: those of the prefix, then any number of others."""
        rest, prefix = sequence(rest, self._space), [sequence(item, self._space) for item in prefix]
        count = len(prefix)
        left = None if most is None else most - count  # of the others
        if not count:
            if left == 0:
                return EMPTY
            more = Repeat(
                part=sequence(self._comma, rest), least=max(least - 1, 0), most=None if left is None else left - 1
            )
            return sequence(rest, more) if least else optional(sequence(rest, more))
        follow: Expression = Repeat(part=sequence(self._comma, rest), least=max(least - count, 0), most=left)
        for number in range(count - 1, -1, -1):
            item = sequence(self._comma, prefix[number]) if number else prefix[number]
            follow = sequence(item, follow)
            if number >= least:
                follow = optional(follow)
        return follow

    def _object(self, schema: Mapping[str, Any]) -> Expression:
        _require(schema.get("additionalProperties") is False)
        properties, required = schema.get("properties", {}), _listed(schema.get("required", []))
        _require(isinstance(properties, Mapping) and all(isinstance(name, str) for name in required))
        fields = [(name, self.value(part), name in required) for name, part in properties.items()]
        return self._fields([*fields, *((name, NOTHING, True) for name in required if name not in properties)])

    def _fields(self, fields: Sequence[tuple[str, Expression, bool]]) -> Expression:
        """Fields in their order: name, value, and whether it is required."""
        items, behind = list[Expression](), list[Expression]()
        for name, value, is_required in fields:
            items.append(sequence(spelled(name), self._space, self._colon, value, self._space))
            following = sequence(self._comma, items[-1])
            behind.append(following if is_required else optional(following))
        by_first = list[Expression]()  # field that is there
        for number, (item, (_, _, is_required)) in enumerate(zip(items, fields, strict=True)):
            by_first.append(sequence(item, *behind[number + 1 :]))
            if is_required:
                return self._bracketed("{}", Either(parts=tuple(by_first)))
        return self._bracketed("{}", Either(parts=(*by_first, EMPTY)))

    def _bracketed(self, brackets: str, inside: Expression) -> Expression:
        return sequence(Text(text=brackets[:1].encode()), self._space, inside, Text(text=brackets[1:].encode()))


def _require(ok: bool) -> None:
    if not ok:
        raise Outside


def _listed(value: Any) -> list[Any]:
    _require(isinstance(value, list))
    return list(value)


def _types(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type")
    listed: list[Any] = kinds if isinstance(kinds, list) else [kinds]
    _require(all(isinstance(kind, str) and kind in _OWN for kind in listed))
    return listed


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_of(value: Any, types: Sequence[str]) -> bool:
    """Whether a value is of any of the types."""
    if _is_number(value):
        return "number" in types or ("integer" in types and value == int(value))
    kinds = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    return kinds[type(value)] in types


def _count(schema: Mapping[str, Any], keyword: str) -> int | None:
    value = schema.get(keyword)
    _require(keyword not in schema or (type(value) is int and value >= 0))
    return value
