"""JSON texts, as expressions over bytes: those of the backend, llguidance, which writes no ``u`` escapes here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from wedlm_core.grammar.regexes import LAST, Ranges, searched, within
from wedlm_core.grammar.regular import (
    NOTHING,
    Both,
    ByteSet,
    Either,
    Expression,
    Outside,
    Repeat,
    Text,
    characters,
    sequence,
)

__all__ = ["TEXT_KEYWORDS", "spelled", "texts"]

TEXT_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
"""What :func:`texts` understands."""

_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, LAST))
_ESCAPES = {ord(char): ord(letter) for char, letter in zip('\n\r\t\b\f\\"', 'nrtbf\\"', strict=True)}
_QUOTE = Text(text=b'"')
_HOUR = "([01][0-9]|2[0-3])"
_DATE = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
_TIME = rf"{_HOUR}:[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+-]{_HOUR}:[0-5][0-9])"
_BELOW_256 = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"({_BELOW_256}\.){{3}}{_BELOW_256}",
}
"""What each format stands for in the backend."""


@lru_cache(maxsize=1024)
def _quoted(ranges: Ranges) -> Expression:
    """A character of a set inside of a JSON text. Nothing stands for one that would take ``u`` to escape."""
    letters = sum(1 << letter for char, letter in _ESCAPES.items() if any(a <= char <= b for a, b in ranges))
    plain = characters(within(ranges, _PLAIN))
    return Either(parts=(plain, sequence(Text(text=b"\\"), ByteSet(mask=letters))))


def texts(*schemas: Mapping[str, Any]) -> Expression:
    """The texts that obey the keywords of all of some schemas, in quotes.

    Raises:
        Outside: a pattern or a format is not of the subset.
    """
    least, most = 0, None
    found = list[Expression]()
    for schema in schemas:
        least = max(least, _length(schema, "minLength") or 0)
        longest = _length(schema, "maxLength")
        most = longest if most is None else min(most, most if longest is None else longest)
        if "pattern" in schema:
            found.append(searched(_text(schema["pattern"]), _quoted))
        if "format" in schema:
            if _text(schema["format"]) not in _FORMATS:
                raise Outside
            found.append(searched(f"^({_FORMATS[schema['format']]})$", _quoted))
    if most is not None and least > most:
        return NOTHING
    if not found or least or most is not None:
        found.append(Repeat(part=_quoted(((0, LAST),)), least=least, most=most))
    both = found[0]
    for other in found[1:]:
        both = Both(parts=(both, other))
    return sequence(_QUOTE, both, _QUOTE)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Outside
    return value


def _length(schema: Mapping[str, Any], keyword: str) -> int | None:
    value = schema.get(keyword)
    if keyword in schema and not (type(value) is int and value >= 0):
        raise Outside
    return value


def spelled(text: str) -> Expression:
    """A text in quotes.

    Raises:
        Outside: it has a character that cannot be spelled without ``u``, or DEL, which the backend loses track of.
    """
    if not all((char >= " " and char != "\x7f") or char in "\n\r\t\b\f" for char in text):
        raise Outside
    return Text(text=json.dumps(text, ensure_ascii=False).encode())
