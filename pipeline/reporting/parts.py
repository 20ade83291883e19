"""Pieces that several sections use."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.reporting.html import Safe, el, join

__all__ = ["grid", "section", "table"]


def section(name: str, title: str, about: str, *children: str | None) -> Safe:
    """A section with a heading that can be linked to."""
    head = join(el("h2", title, id=f"{name}-h"), el("p", about, class_="lead") if about else None)
    return el("section", head, *children, id=name, aria_labelledby=f"{name}-h")


def grid(*charts: str | None) -> Safe:
    """Charts side by side, as many as fit."""
    return el("div", *charts, class_="grid")


def table(label: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, wide: bool = False) -> Safe:
    """A table that scrolls by itself; the first cell of a row is its heading."""
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in heads))) if heads else None
    body = [
        el("tr", el("th", cells[0], scope="row"), *(el("td", cell) for cell in cells[1:])) for cells in rows
    ]  # fmt: skip
    kind = "scroll wide-table" if wide else "scroll"
    return el("div", el("table", head, el("tbody", *body)), class_=kind, tabindex=0, role="region", aria_label=label)
