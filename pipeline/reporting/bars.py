"""Bars: histograms, counts by size, and names with how often they occur."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.reporting.chart import Chart, Frame, caption, empty, figure_of
from pipeline.reporting.histogram import Histogram, filled
from pipeline.reporting.html import Safe, el, join
from pipeline.reporting.numbers import count, figure, nice_ticks, percent, short

__all__ = ["Bar", "bars", "histogram", "ranked"]

_MOST_BARS = 48
_LABELS = 7
_LEAST_HEIGHT = 1.5
"""A few values among very many are to be seen."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar.

    Attributes:
        label: what it stands for.
        value: its length.
        tip: what is said of it.
        shown: its value in the table.
        tick: label on the axis, at its left edge; None for none.
    """

    label: str
    value: float
    tip: str
    shown: str = ""
    tick: str | None = None


def bars(
    chart: Chart,
    given: Sequence[Bar],
    *,
    heading: str,
    mark: float | None = None,
    marked: str = "",
    centred: bool = False,
) -> Safe:
    """Vertical bars, side by side.

    Args:
        chart: see :class:`Chart`.
        given: the bars.
        heading: of the values in the table.
        mark: place of a vertical line, in bars from the left.
        marked: what the line is.
        centred: whether ticks belong to bars, not to their left edges.
    """
    if not any(bar.value for bar in given):
        return empty(chart)
    ticks = nice_ticks(max(bar.value for bar in given), whole=True)
    frame = Frame(most=ticks[-1])
    wide = frame.inner / len(given)
    marks = [_bar(frame, bar, frame.left + i * wide, wide) for i, bar in enumerate(given)]
    shift = wide / 2 if centred else 0.0
    labels = [
        frame.label(bar.tick, frame.left + i * wide + shift) for i, bar in enumerate(given) if bar.tick is not None
    ]
    line = None if mark is None else _line(frame, frame.left + mark * wide, marked)
    body = join(frame.grid(ticks), el("g", *marks), frame.baseline(), *labels, line)
    rows = [(bar.label, bar.shown or count(round(bar.value))) for bar in given if bar.value]
    return figure_of(chart, frame.svg(chart, body), (chart.x, heading), rows)


def _bar(frame: Frame, bar: Bar, left: float, wide: float) -> Safe:
    gap = min(2.0, wide * 0.14)
    high = max(frame.bottom - frame.y(bar.value), _LEAST_HEIGHT) if bar.value else 0.0
    drawn = el("rect", class_="bar", x=left + gap / 2, y=frame.bottom - high, width=wide - gap, height=high,
               rx=min(1.5, wide / 6))  # fmt: skip
    return el("g", frame.hit(left, left + wide), drawn, class_="mark", data_tip=bar.tip)


def _line(frame: Frame, x: float, text: str) -> Safe:
    anchor, shift = ("end", 4) if x > frame.left + frame.inner * 0.6 else ("start", -4)
    return join(
        el("line", class_="mean", x1=x, x2=x, y1=frame.top - 3, y2=frame.bottom),
        el("text", text, class_="note", x=x + shift, y=frame.top - 6, text_anchor=anchor),
    )


def histogram(
    chart: Chart, found: Histogram, *, shown: Callable[[float | None], str] = figure, of: str = "rows"
) -> Safe:  # fmt: skip
    """A histogram's bars, with a line at the mean."""
    first, last = filled(found.bins)
    if first == last:
        return empty(chart)
    edges = _display_edges(found, first, last)
    ticks = _ticks(found, edges, shown)
    given = []
    for (low, high, own), tick in zip(edges, ticks, strict=True):
        label = _range(found, low, high, shown)
        share = percent(own / found.count)
        tip = f"{label} {chart.x}: {count(own)} {of} ({share})"
        given.append(Bar(label=label, value=own, tip=tip, shown=f"{count(own)} ({share})", tick=tick))
    place = _place_of(found.mean, edges)
    return bars(chart, given, heading=of, mark=place, marked=mean_of(shown(found.mean), found.count))


def mean_of(shown: str, count_of: int) -> str:
    """Label a mean with the number of values that it is over."""
    return f"mean {shown} (n = {count(count_of)})"


def _range(found: Histogram, low: float, high: float, shown: Callable[[float | None], str]) -> str:
    if found.scale.whole:
        return count(int(low)) if high - low <= 1 else f"{count(int(low))} to {count(int(high) - 1)}"
    return shown(low) if high <= low else f"{shown(low)} to {shown(high)}"


def _display_edges(found: Histogram, first: int, last: int) -> list[tuple[float, float, int]]:
    """Bins from the first to the last one with values, adjacent ones joined where they are too many."""
    each = max(1, math.ceil((last - first) / _MOST_BARS))
    edges = []
    for start in range(first, last, each):
        stop = min(start + each, last)
        edges.append((found.bounds(start)[0], found.bounds(stop - 1)[1], sum(found.bins[start:stop])))
    return edges


def _ticks(
    found: Histogram, edges: Sequence[tuple[float, float, int]], shown: Callable[[float | None], str]
) -> list[str | None]:
    """Labels at the left edges: at round numbers where the scale is logarithmic, else at every so many."""
    lows = [low for low, _, _ in edges]
    if found.scale.logarithmic:
        is_round = [_is_round(low, whole=found.scale.whole) for low in lows]
        if sum(is_round) >= 2:
            texts = [short(low) if own else None for low, own in zip(lows, is_round, strict=True)]
            return _apart(texts)
    text = shown if shown is percent else _trimmed
    steps = nice_ticks(max(lows[-1] - lows[0], edges[0][1] - edges[0][0]), _LABELS)
    step = steps[1] - steps[0]
    return _apart([text(low) if _is_multiple(low, step) or len(lows) < _LABELS else None for low in lows])


def _apart(texts: list[str | None]) -> list[str | None]:
    """Labels that do not touch each other: those too near to the one before are left out."""
    least, last = len(texts) / 9, -math.inf
    kept: list[str | None] = []
    for i, text in enumerate(texts):
        near = i - last < least
        kept.append(None if near else text)
        last = i if text is not None and not near else last
    return kept


def _is_multiple(value: float, step: float) -> bool:
    return abs(value / step - round(value / step)) < 1e-6


def _is_round(value: float, *, whole: bool) -> bool:
    """Whether a logarithmic axis has a label there: powers of two for whole numbers, else of ten."""
    if value <= 0:
        return True
    power = math.log2(value) if whole else math.log10(value)
    return abs(power - round(power)) < 1e-6


def _place_of(value: float | None, edges: Sequence[tuple[float, float, int]]) -> float | None:
    """Where a value is, in bars from the left."""
    for i, (low, high, _) in enumerate(edges):
        if value is not None and (value < high or i == len(edges) - 1):
            return i + min(1.0, max(0.0, (value - low) / (high - low) if high > low else 0.5))
    return None


def ranked(chart: Chart, given: Sequence[Bar]) -> Safe:
    """Horizontal bars, each with its label above it: for names of any length."""
    if not any(bar.value for bar in given):
        return empty(chart)
    most = max(bar.value for bar in given)
    items = []
    for bar in given:
        wide = max(0.5, 100 * bar.value / most) if bar.value else 0
        drawn = el("svg", el("rect", class_="track", width="100%", height=8, rx=2),
                   el("rect", class_="bar", width=f"{wide:.2f}%", height=8, rx=2),
                   class_="meter", width="100%", height=8, aria_hidden="true")  # fmt: skip
        items.append(el("li", el("span", bar.label, class_="name"), el("span", bar.tip, class_="value"), drawn))
    return el("figure", caption(chart), el("ol", *items, class_="ranked"), class_="chart", id=chart.name)


def _trimmed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
