"""The one chart of the page: vertical bars, each with a tip, over an axis; its numbers are in a table below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reporting.histogram import SCALES, Histogram

NOTHING = "\N{EN DASH}"
"""Where there is no number."""


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
    """A number for an axis, or one with three digits at most: 1.5k, 20M."""
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


_MOST_BARS, _LABELS = 48, 8
_LEAST_HEIGHT = 1.5
"""A few values among very many are to be seen."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar, whose ``label`` names its values and whose length is ``shown`` as text.

    ``tick``: label on the axis, at its left edge; empty for no label.
    """

    label: str
    value: float
    shown: str
    tick: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars over an axis. The template draws them from the numbers below.

    Attributes:
        name: unique on the page.
        about: a sentence for readers who look at it, and for those who cannot.
        x, y: quantities of the axes, with units.
        note: a line above the bars, for example their mean.
    """

    name: str
    title: str
    about: str
    x: str
    y: str
    bars: Sequence[Bar]
    note: str = ""

    width, height, left, right, top, bottom = 520, 220, 44, 510, 30, 180

    @property
    def most(self) -> float:
        """The longest bar."""
        return max(bar.value for bar in self.bars)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Place and label of each line of the vertical axis."""
        return [(self._place(self.most * share), short(self.most * share)) for share in (0.0, 0.5, 1.0)]

    @property
    def drawn(self) -> list[tuple[Bar, float, float, float, float]]:
        """Each bar with the left edge, the upper edge, the width and the height of its rectangle."""
        step, found = (self.right - self.left) / len(self.bars), []
        gap = min(2.0, step * 0.14)
        for i, bar in enumerate(self.bars):
            high = max(self.bottom - self._place(bar.value), _LEAST_HEIGHT) if bar.value else 0.0
            left = self.left + i * step + gap / 2
            found.append((bar, round(left, 2), round(self.bottom - high, 2), round(step - gap, 2), round(high, 2)))
        return found

    def _place(self, value: float) -> float:
        return round(self.bottom - (self.bottom - self.top) * value / (self.most or 1.0), 2)


def histogram_chart(name: str, title: str, about: str, x: str, found: Histogram) -> Chart:
    """Draw a histogram over rows, from its first to its last bin with values; too many bins are joined."""
    there = [i for i, own in enumerate(found.bins) if own]
    first, last = (there[0], there[-1] + 1) if there else (0, 0)
    each = max(1, math.ceil((last - first) / _MOST_BARS))
    starts = range(first, last, each)
    every = math.ceil(len(starts) / _LABELS)
    edges = (-math.inf, *SCALES[found.scale], math.inf)
    bars = []
    for number, start in enumerate(starts):
        stop = min(start + each, last)
        own = sum(found.bins[start:stop])
        bars.append(
            Bar(
                label=f"{short(edges[start])} to {short(edges[stop])}", value=own,
                shown=f"{count(own)} ({percent(own / found.count)})",
                tick=short(edges[start]) if start and number % every == 0 else "",
            )
        )  # fmt: skip
    note = f"mean {figure(found.mean)} (n = {count(found.count)})" if bars else ""
    return Chart(name=name, title=title, about=about, x=x, y="rows", bars=bars, note=note)
