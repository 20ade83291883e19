"""Progress in a notebook: plain HTML in one place of a cell's output, updated as the run goes on. Needs no widgets."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from pipeline.progress.figures import ChainRow, cells_of, chain_rows, clock_time, failure_lines, short_time, stage_marks
from pipeline.progress.lines import format_line
from pipeline.progress.snapshot import Snapshot, Stage

__all__ = ["NotebookView", "in_notebook", "to_html"]

_UPDATE_SECONDS = 1.0
"""Each update is a message to the browser."""
_MARKS = {"past": "&#10003; ", "present": "&#9679; ", "future": ""}
_STYLES = {"past": "", "present": "font-weight:bold", "future": "opacity:.5"}


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel. Imports nothing: where there is none, IPython is not loaded."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def to_html(snapshot: Snapshot) -> str:
    """A snapshot as HTML without scripts and without style sheets; readable on light and dark ground."""
    stages = " &nbsp; ".join(
        f'<span style="{_STYLES[mark.state]}">{_MARKS[mark.state]}{escape(mark.label)}'
        f"{'' if mark.state == 'future' else ' ' + short_time(mark.seconds)}</span>"
        for mark in stage_marks(snapshot)
    )
    cells = "".join(
        f'<span style="display:inline-block;min-width:13em"><span style="opacity:.6">{escape(cell.label)}</span> '
        f"<b{' style=color:#d33' if cell.alarming else ''}>{escape(cell.value)}</b></span>"
        for cell in cells_of(snapshot)
    )
    failed = "".join(f'<div style="color:#d33">{escape(line)}</div>' for line in failure_lines(snapshot))
    rows = [_bar(row) for row in chain_rows(snapshot)]
    bars = "".join(rows) or _progress(snapshot.done.rows, snapshot.total_rows)
    return (
        f'<div style="font-family:monospace;max-width:52em"><div><b>{escape(snapshot.model)}</b> to '
        f"{escape(snapshot.output)}, {clock_time(snapshot.at)}</div><div>{stages}</div>"
        f'{bars}<div>{cells}</div>{failed}<div style="opacity:.6">{escape(snapshot.note)}</div></div>'
    )


def _progress(value: float, most: float, width: str = "100%") -> str:
    return f'<progress style="width:{width}" max="{max(1, most)}" value="{value}"></progress>'


def _bar(row: ChainRow) -> str:
    """A stage of a chain: its name, its bar and its rows."""
    bar = "" if row.share is None else _progress(row.share, 1, "40%")
    failed = f' <b style="color:#d33">{escape(row.failed)}</b>' if row.failed else ""
    return (
        f'<div><span style="display:inline-block;min-width:9em;{_STYLES[row.state]}">{_MARKS[row.state]}'
        f"{escape(row.name)}</span>{bar} {escape(row.text)}{failed}</div>"
    )


class NotebookView:
    """Shows snapshots in the cell that was running when the first one came."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = float("-inf")
        self._stage: Stage | None = None

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        if snapshot.stage is not self._stage or snapshot.at >= self._next:
            self._show(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        self._stage, self._next = snapshot.stage, snapshot.at + _UPDATE_SECONDS
        data = {"text/html": to_html(snapshot), "text/plain": format_line(snapshot)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
