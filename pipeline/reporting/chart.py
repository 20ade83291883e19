"""What all charts share: title, description, axes, and a table with the numbers that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reporting.html import Safe, el
from pipeline.reporting.numbers import short

__all__ = ["HEIGHT", "WIDTH", "Chart", "Frame", "caption", "empty", "figure_of"]

WIDTH, HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 18, 40


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
class Frame:
    """The plot's place in the drawing, and its vertical axis from 0 to ``most``."""

    width: int = WIDTH
    height: int = HEIGHT
    most: float

    @property
    def left(self) -> float:
        """Of the plot."""
        return _LEFT

    @property
    def top(self) -> float:
        """Of the plot."""
        return _TOP

    @property
    def right(self) -> float:
        """Of the plot."""
        return self.width - _RIGHT

    @property
    def bottom(self) -> float:
        """Of the plot."""
        return self.height - _BOTTOM

    @property
    def inner(self) -> float:
        """Width of the plot."""
        return self.right - self.left

    @property
    def high(self) -> float:
        """Height of the plot."""
        return self.bottom - self.top

    def y(self, value: float) -> float:
        """Where a value is."""
        return self.bottom - self.high * value / self.most

    def hit(self, left: float, right: float) -> Safe:
        """A strip over the whole height, which the pointer finds."""
        return el("rect", class_="hit", x=left, y=self.top, width=max(0.1, right - left), height=self.high)

    def grid(self, ticks: Sequence[float]) -> Safe:
        """Lines and labels of the vertical axis."""
        parts = []
        for tick in ticks:
            y = self.y(tick)
            if tick:
                parts.append(el("line", class_="rule", x1=self.left, x2=self.right, y1=y, y2=y))
            parts.append(el("text", short(tick), class_="tick", x=self.left - 6, y=y + 3.5, text_anchor="end"))
        return el("g", *parts)

    def label(self, text: str, x: float) -> Safe:
        """A label of the horizontal axis."""
        return el("text", text, class_="tick", x=x, y=self.bottom + 14, text_anchor="middle")

    def baseline(self) -> Safe:
        """The horizontal axis."""
        return el("line", class_="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)

    def svg(self, chart: Chart, body: Safe, kind: str = "") -> Safe:
        """The drawing. ``kind``: sets drawings of one chart for different screens apart."""
        key = f"{chart.name}-{kind or 'plot'}"
        middle = (self.left + self.right) / 2
        name = el("text", chart.x, class_="axis-name", x=middle, y=self.height - 6, text_anchor="middle")
        return el("svg", el("title", chart.title, id=f"{key}-t"), el("desc", chart.about, id=f"{key}-d"), body, name,
                  class_=f"plot {kind}".strip(), viewBox=f"0 0 {self.width} {self.height}", role="img", tabindex=0,
                  aria_labelledby=f"{key}-t {key}-d")  # fmt: skip


def caption(chart: Chart) -> Safe:
    """Title and description."""
    unit = el("span", chart.y, class_="y-name") if chart.y else None
    return el("figcaption", el("strong", chart.title), el("span", chart.about, class_="about"), unit)


def figure_of(chart: Chart, drawn: Safe, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Safe:
    """The chart, with its numbers in a table that opens."""
    head = el("tr", *(el("th", name, scope="col") for name in heads))
    body = [el("tr", *(el("td", cell) for cell in row)) for row in rows]
    table = el("table", el("thead", head), el("tbody", *body))
    scroll = el("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"numbers: {chart.title}")
    data = el("details", el("summary", "Numbers"), scroll, class_="numbers")
    return el("figure", caption(chart), drawn, data, class_="chart", id=chart.name)


def empty(chart: Chart) -> Safe:
    """A chart without values."""
    return el("figure", caption(chart), el("p", "Nothing to show.", class_="nothing"), class_="chart", id=chart.name)
