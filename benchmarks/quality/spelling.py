"""Whether a grammar has a JSON value at all, and its spelling."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

_MOST_TRIES = 10_000
ORDER, OTHER = "order of fields", "other"
_NUMBER, _CHARACTER = "spelling of a number", "control character"
_LIMIT, _LIMITS = "limit of the grammar library", ("too many", "Current row has")


def takes(matcher: Any, encode: Callable[[str], Sequence[int]], value: Any) -> bool:
    """Whether the value, spelled as ``json.dumps`` does, is an output."""
    own = matcher.deep_copy()
    return bool(own.consume_tokens(encode(json.dumps(value, ensure_ascii=False))) and own.is_accepting())


def reason_of_refusal(matcher: Any, encode: Callable[[str], Sequence[int]], value: Any) -> str:
    """Why a value that a grammar refuses is no output: the spelling that it needs, or ``OTHER``.

    Args:
        matcher: the grammar's, at its beginning.
        encode: from text to tokens.
        value: from JSON.
    """
    if any(char < " " and char not in "\n\r\t\b\f" for text in _texts(value) for char in text):
        return _CHARACTER
    for numbers, reason in ((False, ORDER), (True, _NUMBER)):
        speller = _Speller(encode, numbers)
        found = next(speller.after(matcher, value), None)
        if found is not None and found.is_accepting():
            return reason
        if speller.limited:
            return _LIMIT
    return OTHER


def in_order(value: Any, schema: Any) -> Any:
    """The value with the fields of each object in the order of those ``properties`` that name most of them."""
    return _in_order(value, [list(part["properties"]) for part in _parts(schema) if _names_properties(part)])


def _in_order(value: Any, orders: Sequence[list[str]]) -> Any:
    if isinstance(value, list):
        return [_in_order(inner, orders) for inner in value]
    if not isinstance(value, dict):
        return value
    best = max(orders, key=lambda names: (len(value.keys() & set(names)), -len(names)), default=[])
    place = {name: number for number, name in enumerate(best)}
    return {name: _in_order(value[name], orders) for name in sorted(value, key=lambda name: place.get(name, len(best)))}


def without_siblings(schema: Any) -> Any:
    """The schema without keywords next to ``$ref``, which drafts up to 7 ignore."""
    if isinstance(schema, list):
        return [without_siblings(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        kept = ("$ref", "$schema", "definitions")
        return {name: without_siblings(schema[name]) for name in kept if name in schema}
    return {name: without_siblings(inner) for name, inner in schema.items()}


def _names_properties(part: dict[str, Any]) -> bool:
    return isinstance(part.get("properties"), dict)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from _parts(inner)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _texts(inner)


def _key(name: str, comma: str) -> str:
    return f"{comma}{json.dumps(name, ensure_ascii=False)}: "


class _Speller:
    """Spells values with their fields in any order."""

    def __init__(self, encode: Callable[[str], Sequence[int]], numbers: bool) -> None:
        self._encode, self._numbers, self._left = encode, numbers, _MOST_TRIES
        self.limited = False  # whether a limit of the grammar library was met

    def after(self, matcher: Any, value: Any) -> Iterator[Any]:
        """Matchers after the value, one for each order that the grammar takes."""
        if isinstance(value, dict):
            for opened in self._text(matcher, "{"):
                yield from self._fields(opened, value, "")
        elif isinstance(value, list):
            for opened in self._text(matcher, "["):
                yield from self._items(opened, value, "")
        else:
            spellings = self._spellings(value)
            for text in spellings:
                for spelled in self._text(matcher, text):
                    if len(spellings) == 1 or self._may_end(spelled):
                        yield spelled

    def _may_end(self, matcher: Any) -> bool:
        return bool(matcher.is_accepting()) or any(True for end in (", ", "}", "]") for _ in self._text(matcher, end))

    def _spellings(self, value: Any) -> list[str]:
        own = json.dumps(value, ensure_ascii=False)
        if not self._numbers or not isinstance(value, float):
            return [own]
        return list(
            dict.fromkeys((own, format(Decimal(repr(value)), "f"), *([str(int(value))] if value == int(value) else [])))
        )

    def _text(self, matcher: Any, text: str) -> Iterator[Any]:
        self._left -= 1
        own = matcher.deep_copy()
        if self._left <= 0:
            return
        if own.consume_tokens(self._encode(text)):
            yield own
        elif any(words in own.get_error() for words in _LIMITS):
            self.limited = True

    def _fields(self, matcher: Any, left: dict[str, Any], comma: str) -> Iterator[Any]:
        """Try first the fields that leave most others possible."""
        if not left:
            yield from self._text(matcher, "}")
        found = list[tuple[int, int, Any, dict[str, Any]]]()
        for name, value in left.items():
            rest = {key: inner for key, inner in left.items() if key != name}
            for named in self._text(matcher, _key(name, comma)):
                for behind in itertools.islice(self.after(named, value), 1):
                    others = sum(1 for key in rest for _ in self._text(behind, _key(key, ", ")))
                    found.append((others, len(found), behind, rest))
        for _, _, behind, rest in sorted(found, key=lambda one: (-one[0], one[1])):
            yield from self._fields(behind, rest, ", ")

    def _items(self, matcher: Any, left: list[Any], comma: str) -> Iterator[Any]:
        if not left:
            yield from self._text(matcher, "]")
            return
        for begun in self._text(matcher, comma) if comma else iter((matcher,)):
            for behind in self.after(begun, left[0]):
                yield from self._items(behind, left[1:], ", ")
