"""Charts as SVG. Each has a title, a description, tips for its marks, and a table with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.report.histogram import Histogram, filled
from pipeline.report.html import Safe, el, join
from pipeline.report.numbers import count, figure, nice_ticks, percent, short

__all__ = ["Bar", "Chart", "Point", "Series", "bars", "histogram", "lines", "ranked", "scatter"]

WIDTH, HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 40
_MOST_BARS = 48


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What every chart has.

    Attributes:
        name: unique on the page.
        title: what is shown.
        about: a sentence for who looks at it, and for who cannot.
        x, y: what the axes count, with units.
    """

    name: str
    title: str
    about: str
    x: str = ""
    y: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: what stands below it, its value, and what its tip says."""

    label: str
    value: float
    tip: str
    tick: str | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a line or a scatter."""

    x: float
    y: float
    tip: str = ""
    size: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: its name, its colour class, whether it is drawn as steps, and with the area below it."""

    name: str
    points: Sequence[Point]
    kind: str = "c1"
    steps: bool = False
    area: bool = False
    shown: Callable[[float], str] = field(default=figure)


def bars(chart: Chart, given: Sequence[Bar], *, total: str = "", mark: float | None = None, marked: str = "") -> Safe:
    """Vertical bars, side by side.

    Args:
        chart: see :class:`Chart`.
        given: the bars.
        total: heading of the values in the table.
        mark: place of a vertical line, in bars from the left.
        marked: what the line is.
    """
    if not any(bar.value for bar in given):
        return _empty(chart)
    ticks = nice_ticks(max(bar.value for bar in given))
    frame = _Frame(width=WIDTH, height=HEIGHT, most=ticks[-1])
    wide = frame.inner / len(given)
    marks: list[Safe] = []
    for i, bar in enumerate(given):
        left, top = frame.left + i * wide, frame.y(bar.value)
        gap = min(2.0, wide * 0.14)
        high = frame.bottom - top
        if bar.value and high < 1.5:  # a few values among very many are to be seen
            top, high = frame.bottom - 1.5, 1.5
        marks.append(
            el("g", el("rect", class_="hit", x=left, y=frame.top, width=wide, height=frame.bottom - frame.top),
               el("rect", class_="bar", x=left + gap / 2, y=top, width=wide - gap, height=max(0.0, high), rx=min(1.5, wide / 6)),
               class_="mark", data_tip=bar.tip)
        )  # fmt: skip
    labels = [
        el("text", bar.tick, class_="tick", x=frame.left + i * wide, y=frame.bottom + 14, text_anchor="middle")
        for i, bar in enumerate(given)
        if bar.tick is not None
    ]
    line = Safe("")
    if mark is not None:
        x = frame.left + mark * wide
        anchor, shift = ("end", -4) if mark > len(given) * 0.6 else ("start", 4)
        line = join(
            el("line", class_="mean", x1=x, x2=x, y1=frame.top, y2=frame.bottom),
            el("text", marked, class_="note", x=x + shift, y=frame.top + 8, text_anchor=anchor),
        )
    body = join(frame.grid(ticks), el("g", *marks), frame.baseline(), *labels, line, frame.names(chart))
    rows = [(bar.label, bar.tip.rsplit(": ", 1)[-1]) for bar in given if bar.value]
    return _figure(chart, frame.svg(chart, body), (chart.x, total or chart.y), rows)


def histogram(chart: Chart, found: Histogram, *, shown: Callable[[float | None], str] = figure, of: str = "rows") -> Safe:
    """A histogram's bars, with a line at the mean."""
    first, last = filled(found.bins)
    if first == last:
        return _empty(chart)
    edges = _display_edges(found, first, last)
    given = []
    every = max(1, math.ceil(len(edges) / 7))
    for i, (low, high, own) in enumerate(edges):
        if found.scale.whole:
            label = count(int(low)) if high - low <= 1 else f"{count(int(low))} to {count(int(high) - 1)}"
        else:
            label = f"{shown(low)} to {shown(high)}"
        tip = f"{label} {chart.x}: {count(own)} {of} ({percent(own / found.count)})"
        tick = short(low) if found.scale.whole or found.scale.logarithmic else _trim(low)
        given.append(Bar(label=label, value=own, tip=tip, tick=tick if i % every == 0 else None))
    return bars(chart, given, total=of, mark=_place_of(found.mean, edges), marked=f"mean {shown(found.mean)}")


def _display_edges(found: Histogram, first: int, last: int) -> list[tuple[float, float, int]]:
    """Bins from the first to the last one with values, adjacent ones joined where they are too many."""
    each = max(1, math.ceil((last - first) / _MOST_BARS))
    shown = []
    for start in range(first, last, each):
        stop = min(start + each, last)
        own = sum(found.bins[start:stop])
        shown.append((found.bounds(start)[0], found.bounds(stop - 1)[1], own))
    return shown


def _place_of(value: float | None, edges: Sequence[tuple[float, float, int]]) -> float | None:
    """Where a value is, in bars from the left."""
    if value is None:
        return None
    for i, (low, high, _) in enumerate(edges):
        if value < high or i == len(edges) - 1:
            return i + min(1.0, max(0.0, (value - low) / (high - low) if high > low else 0.5))
    return None


def ranked(chart: Chart, given: Sequence[Bar]) -> Safe:
    """Horizontal bars, each with its label above it: for names of any length."""
    if not any(bar.value for bar in given):
        return _empty(chart)
    most = max(bar.value for bar in given)
    items = []
    for bar in given:
        wide = max(0.5, 100 * bar.value / most) if bar.value else 0
        drawn = el("svg", el("rect", class_="track", width="100%", height=8, rx=2),
                   el("rect", class_="bar", width=f"{wide:.2f}%", height=8, rx=2),
                   class_="meter", width="100%", height=8, aria_hidden="true")  # fmt: skip
        items.append(el("li", el("span", bar.label, class_="name"), el("span", bar.tip, class_="value"), drawn))
    return el("figure", _caption(chart), el("ol", *items, class_="ranked"), class_="chart", id=chart.name)


def lines(chart: Chart, given: Sequence[Series], *, x_shown: Callable[[float], str], wide: bool = True) -> Safe:
    """Lines over a common axis from 0, drawn twice: for wide and for narrow screens."""
    points = [point for series in given for point in series.points]
    if len(points) < 2 or not max(point.y for point in points) > 0:
        return _empty(chart)
    sizes = ((780, 220, "wide"), (WIDTH, HEIGHT, "narrow")) if wide else ((WIDTH, HEIGHT, ""),)
    drawn = [_lines(chart, given, x_shown, width, height, kind) for width, height, kind in sizes]
    legend = el("p", *(join(el("span", class_=f"key {s.kind}"), f"{s.name} ") for s in given), class_="legend")
    rows = []
    base = given[0].points
    step = max(1, len(base) // 24)
    others = [{p.x: p.y for p in s.points} for s in given]
    for point in base[::step]:
        values = (s.shown(o[point.x]) if point.x in o else "–" for s, o in zip(given, others, strict=True))
        rows.append((x_shown(point.x), *values))
    heads = (chart.x, *(s.name for s in given))
    return _figure(chart, join(*drawn, legend if len(given) > 1 else None), heads, rows)


def _lines(
    chart: Chart, given: Sequence[Series], x_shown: Callable[[float], str], width: int, height: int, kind: str
) -> Safe:
    points = [point for series in given for point in series.points]
    ticks = nice_ticks(max(point.y for point in points))
    frame = _Frame(width=width, height=height, most=ticks[-1])
    first, last = min(p.x for p in points), max(p.x for p in points)
    span = (last - first) or 1.0

    def x(value: float) -> float:
        return frame.left + frame.inner * (value - first) / span

    drawn: list[Safe] = []
    for series in given:
        path = _path([(x(p.x), frame.y(p.y)) for p in series.points], steps=series.steps)
        if series.area and series.points:
            ends = f"L{x(series.points[-1].x):.1f} {frame.bottom}L{x(series.points[0].x):.1f} {frame.bottom}Z"
            drawn.append(el("path", class_=f"area {series.kind}", d=path + ends))
        drawn.append(el("path", class_=f"line {series.kind}", d=path))
    tips = _tips(given, x, frame, x_shown)
    wanted = 6 if width > 500 else 3
    marks = [tick for tick in nice_ticks(last, wanted) if first <= tick <= last * 1.001]
    labels = [el("text", x_shown(t), class_="tick", x=x(t), y=frame.bottom + 14, text_anchor="middle") for t in marks]
    body = join(frame.grid(ticks), *drawn, frame.baseline(), *labels, el("g", *tips), frame.names(chart))
    return frame.svg(chart, body, kind)


def _tips(
    given: Sequence[Series], x: Callable[[float], float], frame: _Frame, x_shown: Callable[[float], str]
) -> list[Safe]:
    """Stripes over the plot, each with the values of all series there."""
    base = given[0].points
    others = [{p.x: p.y for p in s.points} for s in given]
    tips = []
    for i, point in enumerate(base):
        left = frame.left if i == 0 else (x(base[i - 1].x) + x(point.x)) / 2
        right = frame.right if i == len(base) - 1 else (x(point.x) + x(base[i + 1].x)) / 2
        values = [f"{s.name} {s.shown(o[point.x])}" for s, o in zip(given, others, strict=True) if point.x in o]
        hit = el("rect", class_="hit", x=left, y=frame.top, width=max(0.1, right - left), height=frame.bottom - frame.top)
        dots = [el("circle", class_=f"dot {s.kind}", cx=x(point.x), cy=frame.y(o[point.x]), r=3)
                for s, o in zip(given, others, strict=True) if point.x in o]  # fmt: skip
        tips.append(el("g", hit, *dots, class_="mark", data_tip=f"{x_shown(point.x)}: {', '.join(values)}"))
    return tips


def scatter(chart: Chart, points: Sequence[Point], *, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Safe:
    """Points; their area follows ``size``, from 0 to 1."""
    if not points:
        return _empty(chart)
    across, up = nice_ticks(max(p.x for p in points), 5), nice_ticks(max(p.y for p in points))
    frame = _Frame(width=WIDTH, height=HEIGHT, most=up[-1])

    def x(value: float) -> float:
        return frame.left + frame.inner * value / across[-1]

    dots = [
        el("g", el("circle", class_="point", cx=x(p.x), cy=frame.y(p.y), r=2 + 5 * math.sqrt(p.size)), class_="mark",
           data_tip=p.tip)
        for p in points
    ]  # fmt: skip
    labels = [
        el("text", short(t), class_="tick", x=x(t), y=frame.bottom + 14, text_anchor="middle") for t in across
    ]
    body = join(frame.grid(up), frame.baseline(), *labels, el("g", *dots), frame.names(chart))
    return _figure(chart, frame.svg(chart, body), heads, rows)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The plot's place in the drawing, and its vertical axis from 0 to ``most``."""

    width: int
    height: int
    most: float
    left: float = _LEFT
    top: float = _TOP

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    @property
    def inner(self) -> float:
        return self.right - self.left

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.most

    def grid(self, ticks: Sequence[float]) -> Safe:
        parts = []
        for tick in ticks:
            y = self.y(tick)
            if tick:
                parts.append(el("line", class_="grid", x1=self.left, x2=self.right, y1=y, y2=y))
            parts.append(el("text", short(tick), class_="tick", x=self.left - 6, y=y + 3.5, text_anchor="end"))
        return el("g", *parts)

    def baseline(self) -> Safe:
        return el("line", class_="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)

    def names(self, chart: Chart) -> Safe:
        return el("text", chart.x, class_="axis-name", x=(self.left + self.right) / 2, y=self.height - 6,
                  text_anchor="middle")  # fmt: skip

    def svg(self, chart: Chart, body: Safe, kind: str = "") -> Safe:
        key = f"{chart.name}-{kind or 'plot'}"
        return el("svg", el("title", chart.title, id=f"{key}-t"), el("desc", chart.about, id=f"{key}-d"), body,
                  class_=f"plot {kind}".strip(), viewBox=f"0 0 {self.width} {self.height}", role="img", tabindex=0,
                  aria_labelledby=f"{key}-t {key}-d")  # fmt: skip


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    parts: list[str] = []
    for i, (x, y) in enumerate(points):
        if i and steps:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"{'L' if i else 'M'}{x:.1f} {y:.1f}")
    return "".join(parts)


def _caption(chart: Chart) -> Safe:
    unit = el("span", chart.y, class_="y-name") if chart.y else None
    return el("figcaption", el("strong", chart.title), el("span", chart.about, class_="about"), unit)


def _figure(chart: Chart, drawn: Safe, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Safe:
    head = el("tr", *(el("th", name, scope="col") for name in heads))
    body = [el("tr", *(el("td", cell) for cell in row)) for row in rows]
    table = el("table", el("thead", head), el("tbody", *body))
    data = el("details", el("summary", "Numbers"), el("div", table, class_="scroll", tabindex=0), class_="numbers")
    return el("figure", _caption(chart), drawn, data, class_="chart", id=chart.name)


def _empty(chart: Chart) -> Safe:
    return el("figure", _caption(chart), el("p", "Nothing to show.", class_="nothing"), class_="chart", id=chart.name)


def _trim(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
