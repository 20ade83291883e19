"""Whether a grammar has a JSON value at all, and under which spelling."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["reason_of_refusal", "takes"]

_MOST_TRIES = 10_000
_ORDER, _NUMBER, _CHARACTER = "order of fields", "spelling of a number", "control character"
_LIMIT = "limit of the grammar library"


def takes(matcher: Any, encode: Callable[[str], Sequence[int]], value: Any) -> bool:
    """Whether the value, spelled as ``json.dumps`` does, is an output."""
    own = matcher.deep_copy()
    return bool(own.consume_tokens(encode(json.dumps(value, ensure_ascii=False))) and own.is_accepting())


def reason_of_refusal(matcher: Any, encode: Callable[[str], Sequence[int]], value: Any) -> str:
    """Why a value that a grammar refuses is no output: the spelling that it needs, or ``other``.

    Args:
        matcher: the grammar's, at its beginning.
        encode: from text to tokens.
        value: from JSON.
    """
    if any(char < " " and char not in "\n\r\t\b\f" for text in _texts(value) for char in text):
        return _CHARACTER
    for numbers, reason in ((False, _ORDER), (True, _NUMBER)):
        found = next(_Speller(encode, numbers).after(matcher, value), None)
        if found is not None and found.is_accepting():
            return reason
    own = matcher.deep_copy()
    own.consume_tokens(encode(json.dumps(value, ensure_ascii=False)))
    return _LIMIT if "too many" in own.get_error() else "other"


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

    def after(self, matcher: Any, value: Any) -> Iterator[Any]:
        """Matchers after the value, one for each order that the grammar takes."""
        if isinstance(value, dict):
            for opened in self._text(matcher, "{"):
                yield from self._fields(opened, value, "")
        elif isinstance(value, list):
            for opened in self._text(matcher, "["):
                yield from self._items(opened, value, "")
        else:
            for text in self._spellings(value):
                yield from self._text(matcher, text)

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
        if self._left > 0 and own.consume_tokens(self._encode(text)):
            yield own

    def _fields(self, matcher: Any, left: dict[str, Any], comma: str) -> Iterator[Any]:
        """Try first the fields after which most others may still come."""
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
