"""Which Arrow type the values of a JSON schema have, and the values as Arrow takes them.

The mapping: docs/guides/structured-output.md, "Typed columns". Values without an Arrow type are JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from pipeline.codec import schema_at

_Kind = Literal["text", "string", "int64", "float64", "bool", "list", "struct", "null", "never"]
_DEEPEST = 16
"""Levels of lists and structs; deeper values are JSON text."""
_MOST_PARTS = 2000
"""Of all types in each other; a schema with more is JSON text as a whole."""
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, kw_only=True)
class JsonType:
    """The type of a value. ``text``: any value, as JSON text; ``null``, ``never``: there is none.

    Attributes:
        kind: of the type.
        item: of a list, the type of its items.
        fields: of a struct, names and types.
    """

    kind: _Kind
    item: JsonType | None = None
    fields: tuple[tuple[str, JsonType], ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """Its Arrow type."""
        if self.kind == "list":
            assert self.item is not None
            return pa.list_(self.item.arrow)
        if self.kind == "struct":
            return pa.struct([pa.field(name, own.arrow) for name, own in self.fields])
        return _PLAIN.get(self.kind, pa.string())

    def convert(self, value: Any, lost: list[Any]) -> Any:
        """A value of JSON as Arrow takes it. A value that the type cannot hold is null, and put into ``lost``."""
        if value is None:
            return None
        if self.kind == "list" and isinstance(value, list) and self.item is not None:
            return [self.item.convert(item, lost) for item in value]
        if self.kind == "struct" and isinstance(value, dict):
            return {name: own.convert(value.get(name), lost) for name, own in self.fields}
        found = _plain(self.kind, value)
        if found is None:
            lost.append(value)
        return found


_PLAIN: Mapping[str, pa.DataType] = {"int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
JSON_TEXT = JsonType(kind="text")
_NULL, _NEVER = JsonType(kind="null"), JsonType(kind="never")
_STRING, _INTEGER, _NUMBER, _BOOLEAN = (
    JsonType(kind="string"), JsonType(kind="int64"), JsonType(kind="float64"), JsonType(kind="bool"),
)  # fmt: skip
_NAMED: Mapping[str, JsonType] = {"string": _STRING, "integer": _INTEGER, "number": _NUMBER, "boolean": _BOOLEAN,
                                  "null": _NULL}  # fmt: skip


def _plain(kind: _Kind, value: Any) -> Any:
    """A value that holds no others; None if it has another kind, or is out of range."""
    if kind == "text":
        text = json.dumps(value, ensure_ascii=False)
        return text if _is_unicode(text) else None
    if kind == "string":
        return value if isinstance(value, str) and _is_unicode(value) else None
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else None
    if not isinstance(value, (int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if kind == "int64":
        whole = int(value) if value == int(value) else None
        return whole if whole in _INT64 else None
    if kind == "float64":
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def _is_unicode(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which JSON's escapes can write."""
    try:
        return text.isascii() or bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none. NaN and infinities are none.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _TooLargeError(Exception):
    """The schema has more parts than a table should."""


def json_type(schema: Mapping[str, Any] | bool) -> JsonType:
    """The type of the values of a schema."""
    try:
        return _Derivation(schema).of(schema, 0, frozenset({"#"}))
    except _TooLargeError:
        return JSON_TEXT


class _Derivation:
    """Derives the types of the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root, self._parts = root, 0

    def of(self, schema: Any, depth: int, inside: frozenset[str]) -> JsonType:
        """The type of a part. ``inside``: the references that it is a part of; one of them again is JSON text."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _TooLargeError
        if schema is False:
            return _NEVER
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return JSON_TEXT
        found = self._own(schema, depth, inside)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            known = reference not in inside
            target = self.of(schema_at(self._root, reference), depth, inside | {reference}) if known else JSON_TEXT
            found = _both(found, target)
        for part in _schemas(schema.get("allOf")):
            found = _both(found, self.of(part, depth, inside))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                found = _both(found, _either(self.of(part, depth, inside) for part in _schemas(schema[keyword])))
        return found

    def _own(self, schema: Mapping[str, Any], depth: int, inside: frozenset[str]) -> JsonType:
        """The type by its own keywords, without the schemas that it refers to."""
        found = JSON_TEXT
        if "type" in schema:
            given = schema["type"]
            names = given if isinstance(given, list) else [given]
            names = [name for name in names if not (name == "integer" and "number" in names)]
            found = _either([self._named(name, schema, depth, inside) for name in names])
        if "enum" in schema:
            found = _both(found, _of_values(_schemas(schema["enum"])))
        if "const" in schema:
            found = _both(found, _of_values([schema["const"]]))
        return found

    def _named(self, name: Any, schema: Mapping[str, Any], depth: int, inside: frozenset[str]) -> JsonType:
        if name == "array":
            every = [self.of(part, depth + 1, inside) for part in _schemas(schema.get("prefixItems"))]
            rest = self.of(schema.get("items", True), depth + 1, inside)
            return JsonType(kind="list", item=_either([*every, rest]))
        if name == "object":
            return self._struct(schema.get("properties"), depth, inside)
        return _NAMED.get(name, JSON_TEXT) if isinstance(name, str) else JSON_TEXT

    def _struct(self, properties: Any, depth: int, inside: frozenset[str]) -> JsonType:
        if not isinstance(properties, Mapping) or not _can_be_fields(properties):
            return JSON_TEXT
        every = [(name, self.of(part, depth + 1, inside)) for name, part in properties.items()]
        fields = tuple((name, own) for name, own in every if own != _NEVER)
        return JsonType(kind="struct", fields=fields) if fields else JSON_TEXT


def _schemas(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else ()


def _can_be_fields(names: Iterable[str]) -> bool:
    """Whether all readers of tables can tell fields of these names apart. Many ignore upper and lower case."""
    folded = [name.casefold() for name in names]
    fine = all(name and name.isprintable() for name in folded)
    return fine and len(set(folded)) == len(folded)


def _of_values(values: Sequence[Any]) -> JsonType:
    """The type that all of some values have."""
    return _either([_of_value(value) for value in values])


def _of_value(value: Any) -> JsonType:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOLEAN
    if isinstance(value, str):
        return _STRING
    return _INTEGER if isinstance(value, int) else _NUMBER if isinstance(value, float) else JSON_TEXT


def _either(types: Iterable[JsonType]) -> JsonType:
    """The type of values of any of these types: JSON text, unless all but null are the same. All are nullable."""
    found = dict.fromkeys(types)
    some = [own for own in found if own not in (_NULL, _NEVER)]
    if len(some) == 1:
        return some[0]
    if set(some) == {_INTEGER, _NUMBER}:
        return _NUMBER
    return JSON_TEXT if some else _NULL if _NULL in found else _NEVER


def _both(one: JsonType, other: JsonType) -> JsonType:
    """The type of values that are of both types."""
    if one == other or other == JSON_TEXT:
        return one
    if one == JSON_TEXT:
        return other
    kinds = {one.kind, other.kind}
    if kinds & {"null", "never"}:
        return _NEVER if "never" in kinds else _NULL
    if kinds == {"int64", "float64"}:
        return _INTEGER
    if kinds == {"list"} and one.item is not None and other.item is not None:
        return JsonType(kind="list", item=_both(one.item, other.item))
    if kinds == {"struct"}:
        more, own = dict(other.fields), dict(one.fields)
        merged = {name: _both(kind, more[name]) if name in more else kind for name, kind in own.items()} | {
            name: kind for name, kind in more.items() if name not in own
        }
        return JsonType(kind="struct", fields=tuple(merged.items())) if _can_be_fields(merged) else JSON_TEXT
    return JSON_TEXT
