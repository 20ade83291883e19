"""Bounds of numbers that hold for the doubles that readers get, and not only for the digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST = 2**53
"""Up to here each integer is a double; larger numbers are rounded on their way through the backend."""
_DIGITS = 15  # significant ones, which a double always keeps
_MOST_DECIMALS = 22  # a number with more may be read as the double next to it
_LEAST_STEP = Decimal(10) ** -_DIGITS


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_exact(value: float) -> bool:
    """Whether every reader reads the digits of a number as the same double."""
    if isinstance(value, int):
        return True
    digits, exponent = Decimal(repr(value)).normalize().as_tuple()[1:]
    return len(digits) <= _DIGITS and isinstance(exponent, int) and exponent >= -_MOST_DECIMALS


def exact_bounds(schema: Mapping[str, Any]) -> dict[str, float]:
    """The closed bounds that stand for all bounds of a schema, as ``minimum`` and ``maximum``.

    An open bound becomes the next number of 15 digits, as digits between both may be read as the bound itself. With
    ``multipleOf`` numbers stay where the multiples of its binary fraction are doubles.
    """
    whole = _integers_only(schema)
    lows = [_inside(bound, 1, is_open, whole) for bound, is_open in _given(schema, "minimum", "exclusiveMinimum")]
    highs = [_inside(bound, -1, is_open, whole) for bound, is_open in _given(schema, "maximum", "exclusiveMaximum")]
    most = _most_multiple(schema)
    if most is not None:
        lows.append(-most)
        highs.append(most)
    bounds = {"minimum": max(lows)} if lows else {}
    return bounds | ({"maximum": min(highs)} if highs else {})


def shorter_numbers(bounds: Mapping[str, float]) -> list[float]:
    """Numbers within bounds whose digits begin those of a bound.

    The backend takes ``0.74`` and ``0.7`` followed by more digits for a maximum of 0.75, but not ``0.7``.
    """
    low, high = bounds.get("minimum"), bounds.get("maximum")
    found = list[float]()
    for bound, sign in ((high, 1), (low, -1)):
        if bound is None or sign * bound <= 0:
            continue
        whole, _, decimals = format(Decimal(repr(bound)), "f").partition(".")
        found += [float(f"{whole}.{decimals[:length]}") for length in range(1, len(decimals.rstrip("0")))]
    return [
        value for value in dict.fromkeys(found) if (low is None or low <= value) and (high is None or value <= high)
    ]


def _integers_only(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type")
    listed = types if isinstance(types, list) else [types]
    return "integer" in listed and "number" not in listed


def _given(schema: Mapping[str, Any], closed: str, opened: str) -> list[tuple[float, bool]]:
    """Bounds, and whether each is open. In draft 4 the second keyword says whether the first one is."""
    exclusive = schema.get(opened)
    found = [(schema[closed], exclusive is True)] if closed in schema else []
    return found + ([(exclusive, True)] if exclusive is not None and not isinstance(exclusive, bool) else [])


def _inside(bound: float, sign: int, is_open: bool, whole: bool) -> float:
    """The outermost allowed number on the side of a bound that ``sign`` points to."""
    if whole:
        nearest = math.ceil(bound) if sign > 0 else math.floor(bound)
        nearest = nearest + sign if is_open and nearest == bound else nearest
        return max(nearest, -LARGEST) if sign > 0 else min(nearest, LARGEST)
    if sign * bound < -LARGEST:
        return -sign * LARGEST
    if not is_open:
        return bound
    exact = Decimal(repr(bound))
    if abs(exact) >= 10 ** (_DIGITS - 1):
        return math.floor(exact) + 1 if sign > 0 else math.ceil(exact) - 1
    step = Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1) if exact else _LEAST_STEP
    return float(exact + sign * step)


def _most_multiple(schema: Mapping[str, Any]) -> float | None:
    """All multiples up to this number are doubles."""
    if "multipleOf" not in schema:
        return None
    exact = LARGEST / Fraction(schema["multipleOf"]).denominator
    return int(exact) if exact >= 1 else exact
