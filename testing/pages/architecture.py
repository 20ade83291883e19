"""Draws the packages and who imports whom.

    python -m testing.pages.architecture

writes docs/images/architecture.svg. Boxes, words and arrows come from the diagram in docs/design/packages.md, and a
test holds that diagram to the imports of the code. This module only places them: by hand, and a package without a place
below the packages that import it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from testing.repository import ROOT

FILE = ROOT / "docs" / "images" / "architecture.svg"
PAGE = ROOT / "docs" / "design" / "packages.md"

_PLACES: Mapping[str, tuple[float, float]] = {  # column, row
    "wedlm_batch": (1, 0.65), "jobs": (2, 0.65), "wedlm_base": (0, 0.65),
    "pipeline": (0, 2), "pipeline.commands": (0, 3), "pipeline.cluster": (0, 4), "pipeline.worker": (0, 5),
    "pipeline.prompts": (0, 6), "pipeline.plan": (0, 7), "pipeline.commit": (0, 8), "pipeline.sources": (1, 8),
    "pipeline.commit.index": (0, 9), "pipeline.sinks": (1, 9), "pipeline.storage": (1, 10), "pipeline.codec": (1, 11),
    "wedlm_core": (2, 2), "wedlm_core.llm": (2, 3), "wedlm_core.training": (3, 3), "wedlm_core.engine": (2, 4),
    "wedlm_core.engine.drafting": (2, 5), "wedlm_core.engine.forward": (3, 5), "wedlm_core.engine.scheduling": (2, 6),
    "wedlm_core.decoding": (2, 8), "wedlm_core.model": (3, 7), "wedlm_core.attention": (3, 8), "wedlm_core.kv": (3, 9),
    "wedlm_core.kernels": (3, 10), "wedlm_core.config": (3, 11), "wedlm_core.templating": (2, 10),
}  # fmt: skip
_WIDTH, _HEIGHT, _STEP_X, _STEP_Y, _LEFT, _TOP = 236, 52, 274, 84, 24, -36
_WRAP = 42
_SHAPES = """
  text { font-family: ui-sans-serif, system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  .name { font-size: 12.5px; font-weight: 600 }
  .about { font-size: 11px }
  .panel { font-size: 13px; font-weight: 600 }
  .group { fill: none; stroke-dasharray: 5 5 }
  .arrow { fill: none; stroke-width: 1.3 }
  .across { stroke-dasharray: 3 3 }"""
_COLOURS = """
  text, .name {{ fill: {ink} }} .about, .panel {{ fill: {soft} }} .paper {{ fill: {paper} }}
  .arrow {{ stroke: {line} }} .tip {{ fill: {line} }} .box, .group {{ stroke: {edge} }}
  .rows {{ fill: {rows} }} .core {{ fill: {core} }} .top {{ fill: {top} }}"""
_LIGHT = {"paper": "#ffffff", "ink": "#1b1f2a", "soft": "#4d556a", "line": "#7c869d", "edge": "#b9c1d1",
          "rows": "#e8f1fb", "core": "#eaf6e6", "top": "#f4edfa"}  # fmt: skip
_DARK = {"paper": "#14171f", "ink": "#eceff6", "soft": "#b4bccd", "line": "#8791a8", "edge": "#465069",
         "rows": "#1b2b40", "core": "#1d3226", "top": "#2c2438"}  # fmt: skip
# Plain colours, no variables: not only browsers show drawings.
_STYLE = (f"{_SHAPES}{_COLOURS.format(**_LIGHT)}\n  @media (prefers-color-scheme: dark) {{{_COLOURS.format(**_DARK)}\n"
          "  }\n")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Box:
    """A package. ``about``: its purpose, in some words."""

    package: str
    about: str


@dataclass(frozen=True, kw_only=True)
class Diagram:
    """Boxes from the top down, and pairs of packages: the first imports the second."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[str, str], ...]


def read_diagram(text: str) -> Diagram:
    """The Mermaid diagram of a page."""
    (source,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    labels = {name: (package, about) for name, package, about in
              re.findall(r'^\s*(\w+)\["([\w.]+): ([^"]+)"\]$', source, re.MULTILINE)}  # fmt: skip
    ends = re.findall(r"^\s*(\w+) --> (\w+)$", source, re.MULTILINE)
    return Diagram(
        boxes=tuple(Box(package=package, about=about) for package, about in labels.values()),
        arrows=tuple((labels[tail][0], labels[tip][0]) for tail, tip in ends),
    )


def places(diagram: Diagram) -> dict[str, tuple[float, float]]:
    """Column and row of each box; a package without a place gets a free place in a row below its importers."""
    found = {box.package: _PLACES[box.package] for box in diagram.boxes if box.package in _PLACES}
    for box in diagram.boxes:
        if box.package not in found:
            above = [found[tail][1] for tail, tip in diagram.arrows if tip == box.package and tail in found]
            found[box.package] = _free(found, box.package, max(above, default=1) + 1)
    return found


def _free(taken: Mapping[str, tuple[float, float]], package: str, row: float) -> tuple[float, float]:
    columns = (2, 3) if package.startswith("wedlm_core") else (1, 0)
    while True:
        for column in columns:
            if (column, row) not in taken.values():
                return column, row
        row += 1


def draw(diagram: Diagram) -> str:
    """The drawing as SVG: legible on light and dark pages, as it brings its own paper."""
    at = places(diagram)
    rows = max(row for _, row in at.values())
    width, height = _LEFT * 2 + 3 * _STEP_X + _WIDTH + 8, _TOP + rows * _STEP_Y + _HEIGHT + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title about">',
        '<title id="title">The packages of WeDLM Batch</title>',
        '<desc id="about">Two columns of packages, from the top down: pipeline (rows in, rows out) and wedlm_core (the '
        "engine). An arrow leads from a package to one that it imports.</desc>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
        _panel(0, rows, "pipeline: rows in, rows out, exactly once"),
        _panel(2, rows, "wedlm_core: model, engine, training"),
    ]
    parts += [_arrow(tail, tip, at) for tail, tip in diagram.arrows]
    parts += [_box(box, at[box.package]) for box in diagram.boxes]
    return "\n".join([*parts, "</svg>", ""])


def _corner(place: tuple[float, float]) -> tuple[float, float]:
    return _LEFT + place[0] * _STEP_X, _TOP + place[1] * _STEP_Y


def _panel(column: float, rows: float, words: str) -> str:
    x, y = _corner((column, 2))
    width, height = _STEP_X + _WIDTH + 26, (rows - 2) * _STEP_Y + _HEIGHT + 42
    return (f'<rect class="group" x="{x - 8:g}" y="{y - 14:g}" width="{width:g}" height="{height:g}" rx="10"/>'
            f'<text class="panel" x="{x + 2:g}" y="{y + height - 24:g}">{escape(words)}</text>')  # fmt: skip


def _side(package: str) -> str:
    if package.startswith("pipeline"):
        return "rows"
    return "core" if package.startswith("wedlm_core") else "top"


def _box(box: Box, place: tuple[float, float]) -> str:
    x, y = _corner(place)
    lines = textwrap.wrap(box.about, _WRAP)
    words = "".join(f'<text class="about" x="{x + 10:g}" y="{y + 33 + 13 * i:g}">{escape(line)}</text>'
                    for i, line in enumerate(lines))  # fmt: skip
    return (f'<g data-package="{box.package}"><rect class="box {_side(box.package)}" x="{x:g}" y="{y:g}" '
            f'width="{_WIDTH}" height="{_HEIGHT + 13 * (len(lines) - 1):g}" rx="7"/>'
            f'<text class="name" x="{x + 10:g}" y="{y + 19:g}">{box.package}</text>{words}</g>')  # fmt: skip


def _arrow(tail: str, tip: str, at: Mapping[str, tuple[float, float]]) -> str:
    across = _side(tail) == "rows" and _side(tip) == "core"
    path = _sideways(at[tail], at[tip]) if _beside(at[tail], at[tip]) or across else _down(at[tail], at[tip], at)
    kind = "arrow across" if across else "arrow"
    return f'<path class="{kind}" data-from="{tail}" data-to="{tip}" d="{path}" marker-end="url(#tip)"/>'


def _beside(tail: tuple[float, float], tip: tuple[float, float]) -> bool:
    """Whether an arrow goes through the gap between two columns: to the right, level or past a row."""
    return tip[0] > tail[0] and (tip[1] == tail[1] or tip[1] - tail[1] > 1) and tail[1] >= 2


def _sideways(tail: tuple[float, float], tip: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = _corner(tail), _corner(tip)
    begin, end, middle = x1 + _WIDTH, x2 - 2, (x1 + _WIDTH + x2) / 2
    low = 26 if y1 == y2 else 38
    return f"M{begin:g} {y1 + low:g} C{middle:g} {y1 + low:g} {middle:g} {y2 + 26:g} {end:g} {y2 + 26:g}"


def _down(tail: tuple[float, float], tip: tuple[float, float], at: Mapping[str, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = _corner(tail), _corner(tip)
    between = [place for place in at.values() if place[0] == tail[0] and tail[1] < place[1] < tip[1]]
    if x1 == x2 and between:  # around them, on the right
        edge, out = x1 + _WIDTH, x1 + _WIDTH + 14
        return (f"M{edge:g} {y1 + 34:g} Q{out:g} {y1 + 34:g} {out:g} {y1 + 56:g} L{out:g} {y2 - 4:g} "
                f"Q{out:g} {y2 + 16:g} {edge + 2:g} {y2 + 16:g}")  # fmt: skip
    shift = 0 if x1 == x2 else (44 if x2 > x1 else -44)
    a, b = x1 + _WIDTH / 2 + shift, x2 + _WIDTH / 2 - shift
    low, high = y1 + _HEIGHT, y2 - 1
    return f"M{a:g} {low:g} C{a:g} {(low + high) / 2:g} {b:g} {(low + high) / 2:g} {b:g} {high:g}"


def _main(file: Path = FILE) -> None:
    file.write_text(draw(read_diagram(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    _main()
