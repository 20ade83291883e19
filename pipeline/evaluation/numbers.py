"""Numbers as people and models write them: found in text, and compared by value."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

__all__ = ["as_number", "final_number", "same_number"]

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"(?<![\w.])[-+]?\s?[$€£]?\s?(?:{_DIGITS})(?:[eE][-+]?\d{{1,3}})?(?:\s?/\s?\d+(?![\d.]))?")
_LONGEST = 400
"""Characters of a number: nobody means a longer one, and exact arithmetic on it would take long."""


def as_number(text: str) -> Fraction | None:
    """The value of a text that is one number: ``1,250``, ``$3.50``, ``-7``, ``3/4``, ``12%``, ``1e3``; else None."""
    plain = text.strip().strip("*`").rstrip(".").replace("\u2212", "-").replace("\\$", "").replace("\\%", "%")
    plain = re.sub(r"^([-+]?)\s*[$€£]\s*", r"\1", plain).removesuffix("%").removeprefix("+").strip()
    if len(plain) > _LONGEST or not re.fullmatch(rf"-?(?:{_DIGITS})\.?(?:[eE][-+]?\d{{1,3}})?(?:/\d+)?", plain):
        return None
    upper, _, lower = plain.replace(",", "").partition("/")
    if lower and int(lower) == 0:
        return None
    return Fraction(Decimal(upper.rstrip("."))) / (int(lower) if lower else 1)


def final_number(text: str, marker: str | None = None) -> str | None:
    """The number that a worked answer ends with.

    Args:
        text: the answer.
        marker: what stands in front of the result, such as ``####``; where it is missing, or no number follows it,
            the last number of the whole text counts.
    """
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("{,}", ",")
    if marker is not None and marker in text:
        first = _NUMBER.search(text.rsplit(marker, 1)[1])
        if first is not None:
            return _plain(first.group())
    found = _NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def same_number(one: str | None, other: str | None) -> bool:
    """Whether both are numbers of the same value; what is no number equals nothing."""
    first, second = (None if text is None else as_number(text) for text in (one, other))
    return first is not None and first == second


def _plain(found: str) -> str:
    """As it is written, without spaces, currency and signs that say nothing. A sum's minus is told from a sign's."""
    return re.sub(r"[$€£\s]", "", found).removeprefix("+")
