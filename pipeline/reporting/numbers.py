"""Numbers as people read them."""

from __future__ import annotations

import math

NOTHING = "\N{EN DASH}"
"""Where there is no number."""

__all__ = ["NOTHING", "clock", "count", "figure", "nice_ticks", "percent", "short"]


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


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


def clock(seconds: float) -> str:
    """A stretch of time: 12 s, 3:05 min, 2:10:00 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def nice_ticks(most: float, wanted: int = 4, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to at least ``most``; ``whole``: integers only."""
    if not most > 0 or not math.isfinite(most):
        return [0.0, 1.0]
    rough = most / wanted
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if size * factor >= rough * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    return [step * i for i in range(max(1, math.ceil(most / step - 1e-9)) + 1)]
