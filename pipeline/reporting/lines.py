"""Lines over time, and points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.reporting.chart import Chart, Frame, empty, figure_of
from pipeline.reporting.html import Safe, el, join
from pipeline.reporting.numbers import NOTHING, figure, nice_ticks, short

__all__ = ["Point", "Series", "lines", "scatter"]

_SIZES = ((1060, 210, "wide", 8), (720, 210, "middle", 6), (380, 200, "narrow", 3))
"""Width, height, name and labels of the drawings for different screens."""
_MOST_POINTS = 160
_TABLE_ROWS = 24


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point."""

    x: float
    y: float
    tip: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line.

    Attributes:
        name: of what is counted.
        points: from the left to the right.
        kind: its colour and dashes.
        steps: whether it is drawn as steps.
        area: whether what is below it is coloured.
        shown: its values as text.
    """

    name: str
    points: Sequence[Point]
    kind: str = "c1"
    steps: bool = False
    area: bool = False
    shown: Callable[[float], str] = field(default=figure)


def lines(
    chart: Chart, given: Sequence[Series], *, x_shown: Callable[[float], str], whole: bool = False, most: float = 0.0
) -> Safe:
    """Lines over a common axis from 0, drawn for three widths of screens.

    Args:
        chart: see :class:`Chart`.
        given: the lines.
        x_shown: places as text.
        whole: whether values are integers.
        most: the vertical axis reaches to this at least.
    """
    given = [_thinned(series) for series in given if len(series.points) > 1]
    top = max((point.y for series in given for point in series.points), default=0.0)
    if not given or not top > 0:
        return empty(chart)
    ticks = nice_ticks(max(top, most), whole=whole)
    drawn = [_drawing(chart, given, x_shown, ticks, size) for size in _SIZES]
    legend = None
    if len(given) > 1:
        keys = (join(el("span", class_=f"key {s.kind}"), s.name) for s in given)
        legend = el("p", *(el("span", key) for key in keys), class_="legend")
    values = _values(given)
    places = sorted(values)
    rows = [
        (x_shown(x), *(NOTHING if v is None else s.shown(v) for s, v in zip(given, values[x], strict=True)))
        for x in places[:: max(1, len(places) // _TABLE_ROWS)]
    ]
    return figure_of(chart, join(*drawn, legend), (chart.x, *(s.name for s in given)), rows)


def _thinned(series: Series) -> Series:
    """With fewer points, each the mean of its neighbours: what is drawn keeps its shape."""
    each = math.ceil(len(series.points) / _MOST_POINTS)
    if each < 2:
        return series
    groups = [series.points[i : i + each] for i in range(0, len(series.points), each)]
    points = [Point(x=own[-1].x, y=own[-1].y if series.steps else sum(p.y for p in own) / len(own)) for own in groups]
    return Series(name=series.name, points=points, kind=series.kind, steps=series.steps, area=series.area,
                  shown=series.shown)  # fmt: skip


def _values(given: Sequence[Series]) -> dict[float, list[float | None]]:
    """Place -> the value of each series there."""
    values: dict[float, list[float | None]] = {}
    for i, series in enumerate(given):
        for point in series.points:
            values.setdefault(point.x, [None] * len(given))[i] = point.y
    return values


def _drawing(
    chart: Chart,
    given: Sequence[Series],
    x_shown: Callable[[float], str],
    ticks: Sequence[float],
    size: tuple[int, int, str, int],
) -> Safe:
    width, height, kind, wanted = size
    frame = Frame(width=width, height=height, most=ticks[-1])
    places = sorted({point.x for series in given for point in series.points})
    first, last = places[0], places[-1]

    def x(value: float) -> float:
        return frame.left + frame.inner * (value - first) / ((last - first) or 1.0)

    drawn: list[Safe] = []
    for series in given:
        path = _path([(x(p.x), frame.y(p.y)) for p in series.points], steps=series.steps)
        if series.area:
            ends = f"L{x(series.points[-1].x):.1f} {frame.bottom:g}L{x(series.points[0].x):.1f} {frame.bottom:g}Z"
            drawn.append(el("path", class_=f"area {series.kind}", d=path + ends))
        drawn.append(el("path", class_=f"line {series.kind}", d=path))
    marks = [t for t in nice_ticks(last, wanted) if first <= t <= last]
    labels = [frame.label(x_shown(t), x(t)) for t in marks]
    tips = _tips(given, x, frame, x_shown)
    return frame.svg(chart, join(frame.grid(ticks), *drawn, frame.baseline(), *labels, el("g", *tips)), kind)


def _tips(
    given: Sequence[Series], x: Callable[[float], float], frame: Frame, x_shown: Callable[[float], str]
) -> list[Safe]:
    """Strips over the plot, each with the values of all series there."""
    values = _values(given)
    places = sorted(values)
    tips = []
    for i, place in enumerate(places):
        left = frame.left if i == 0 else (x(places[i - 1]) + x(place)) / 2
        right = frame.right if i == len(places) - 1 else (x(place) + x(places[i + 1])) / 2
        there = [(s, v) for s, v in zip(given, values[place], strict=True) if v is not None]
        dots = [el("circle", class_=f"dot {s.kind}", cx=x(place), cy=frame.y(v), r=3) for s, v in there]
        tip = f"{x_shown(place)}: {', '.join(f'{s.name} {s.shown(v)}' for s, v in there)}"
        tips.append(el("g", frame.hit(left, right), *dots, class_="mark", data_tip=tip))
    return tips


def scatter(chart: Chart, points: Sequence[Point], *, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Safe:
    """Points, both axes from 0."""
    if not points:
        return empty(chart)
    across, up = nice_ticks(max(p.x for p in points), 5), nice_ticks(max(p.y for p in points))
    frame = Frame(most=up[-1])

    def x(value: float) -> float:
        return frame.left + frame.inner * value / across[-1]

    dots = [
        el("g", el("circle", class_="point", cx=x(p.x), cy=frame.y(p.y), r=3.5), class_="mark", data_tip=p.tip)
        for p in points
    ]
    labels = [frame.label(short(tick), x(tick)) for tick in across]
    body = join(frame.grid(up), frame.baseline(), *labels, el("g", *dots))
    return figure_of(chart, frame.svg(chart, body), heads, rows)


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    parts: list[str] = []
    for i, (x, y) in enumerate(points):
        if i and steps:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"{'L' if i else 'M'}{x:.1f} {y:.1f}")
    return "".join(parts)
