"""Numbers as people read them."""

from __future__ import annotations

import math

NOTHING = "\N{EN DASH}"
"""Where there is no number."""

__all__ = ["NOTHING", "count", "counted", "figure", "percent", "short"]


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """A whole number of things: 1 row, 2 rows."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent; a dash for None."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    if places > 6:
        return f"{value:.1e}"
    return f"{value:,.{places}f}"


def short(value: float) -> str:
    """A number for an axis, or of which three digits are enough: 1.5k, 20M."""
    if not math.isfinite(value):
        return NOTHING
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share; small ones are not shown as nothing, nor nearly all as all."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if 0 < value < 0.001:
        return "< 0.1%"
    if 0.999 < value < 1:
        return "> 99.9%"
    return f"{100 * value:.1f}%".replace(".0%", "%")
