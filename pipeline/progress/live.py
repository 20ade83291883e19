"""Progress by rich: a frame in a fixed place of a terminal, drawn a few times a second; the same in a notebook."""

from __future__ import annotations

import atexit
import io
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.progress.figures import (
    FAILED,
    clock_time,
    count,
    failure_lines,
    figures_of,
    filter_rows,
    format_line,
    short_time,
    stage_rows,
)
from pipeline.progress.snapshot import Snapshot, Stage

_LEAST_WIDTH = 20
_FIGURE_WIDTH = 30
"""Columns that a figure with its label takes at least."""
_RATIOS = (5, 4, 5)
"""Widths of the columns of figures, where all of them fit side by side."""
_NO_TIME = 0.05
_WIDE = 60
"""The stages of a chain have bars from this number of columns on."""
_NOTEBOOK_WIDTH = 100
_NOTEBOOK_SECONDS = 1.0
"""Between two updates of a cell: each is a message to the browser."""
_SHOW_CURSOR = "\x1b[?25h"
_STYLES = {"past": "green", "present": "bold cyan", "future": "dim"}
_MARKS = {"past": "✓ ", "present": "● ", "future": "  "}
_ASCII_MARKS = {"past": "+ ", "present": "> ", "future": "  "}


def can_show(file: TextIO) -> bool:
    """Whether a stream is a terminal that can redraw lines."""
    console = Console(file=file)
    return console.is_terminal and not console.is_dumb_terminal and file.isatty()


def frame(snapshot: Snapshot, console: Console) -> RenderableType:
    """A snapshot for a console of any width. The last column stays free: some terminals wrap a line that is full."""
    width = max(_LEAST_WIDTH, console.width - 1)
    marks = _ASCII_MARKS if console.options.ascii_only else _MARKS
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1, no_wrap=True, overflow="crop")
    head.add_column(justify="right", no_wrap=True)
    title = Text(snapshot.model, style="bold").append(f" to {snapshot.output}", style="not bold")
    head.add_row(title, Text(clock_time(snapshot.at), style="dim"))
    failed = [_line(line, "red") for line in failure_lines(snapshot)]
    bars = _chain(snapshot, width, marks) if snapshot.chain else _bar(snapshot)
    parts: list[RenderableType] = [
        head,
        Columns(_stages(snapshot, marks), padding=(0, 2, 0, 0)),
        bars,
        _figures(snapshot, width),
    ]
    return Constrain(Group(*parts, *failed, _line(snapshot.note, "dim")), width)


def _stages(snapshot: Snapshot, marks: dict[str, str]) -> list[Text]:
    """The stages in their order. One that the run went through unseen, or in no time, is left out."""
    now = list(Stage).index(snapshot.stage)
    found = []
    for place, stage in enumerate(Stage):
        seconds = snapshot.stages.get(stage, 0.0)
        begun = seconds >= _NO_TIME
        to_come = place >= now and (stage is not Stage.FILTERING or bool(snapshot.filters))
        if stage is not Stage.DONE and (begun or to_come):
            state = "present" if place == now else "past" if begun else "future"
            spent = "" if state == "future" else f" {short_time(seconds)}"
            found.append(_line(f"{marks[state]}{stage.label}{spent}", _STYLES[state]))
    return found


def _bar(snapshot: Snapshot) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(ratio=1)
    grid.add_row(_progress_bar(snapshot.share), f"{int(snapshot.share * 100)}%" if snapshot.total_rows else "")
    return grid


def _chain(snapshot: Snapshot, width: int, marks: dict[str, str]) -> Table:
    """A line for each stage: name, share and rows, and a bar where there is room. The filters are the last lines."""
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, overflow="crop", min_width=_LEAST_WIDTH // 2, max_width=max(_LEAST_WIDTH, width) // 2)
    grid.add_column(no_wrap=True, overflow="crop")
    has_bars = width >= _WIDE
    if has_bars:
        grid.add_column(ratio=1)
    for own in snapshot.chain:
        done = own.done
        state = "past" if 0 < own.units == done.units else "present" if done.units else "future"
        text = Text(f"{int(own.share * 100)}% {stage_rows(own)}")
        text.append(f"  {count(done.failed_rows)} failed" if done.failed_rows else "", style="bold red")
        bar = [_progress_bar(own.share)] if has_bars else []
        grid.add_row(_line(marks[state] + own.name, _STYLES[state]), text, *bar)
    due = next((own for own in snapshot.filters if own.rows is None), None)
    for kept in snapshot.filters:
        present = kept is due and snapshot.stage is Stage.FILTERING
        state = "past" if kept.rows is not None else "present" if present else "future"
        grid.add_row(_line(marks[state] + kept.name, _STYLES[state]), filter_rows(kept))
    return grid


def _figures(snapshot: Snapshot, width: int) -> Table:
    per_line = max(1, min(len(_RATIOS), width // _FIGURE_WIDTH))
    grid = Table.grid(expand=True, padding=(0, 1))
    for ratio in _RATIOS[:per_line]:
        grid.add_column(ratio=ratio if per_line == len(_RATIOS) else 1, no_wrap=True, overflow="crop")
    texts = [_figure(label, value) for label, value in figures_of(snapshot).items()]
    for first in range(0, len(texts), per_line):
        grid.add_row(*texts[first : first + per_line])
    return grid


def _figure(label: str, value: str) -> Text:
    alarming = label == FAILED and value != "0"
    return Text(f"{label} ", style="dim").append(value, style="not dim bold red" if alarming else "not dim")


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")


def _progress_bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green")


class LiveView:
    """Shows frames on a terminal; output of others appears above it. Its end leaves the terminal as it was.

    A finished run leaves no frame there: its summary follows. One that ends early leaves the last one.
    """

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop",
            redirect_stdout=True, redirect_stderr=True,
        )  # fmt: skip

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        if not self._live.is_started:
            atexit.register(self._show_cursor)  # for ends that no block of ours sees
            self._live.start()
        self._live.update(frame(snapshot, self._console), refresh=True)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        if not self._live.is_started:
            return
        self._live.transient = snapshot.stage is Stage.DONE
        self._live.update(frame(snapshot, self._console), refresh=True)
        self._live.stop()
        atexit.unregister(self._show_cursor)

    def _show_cursor(self) -> None:
        self._console.file.write(_SHOW_CURSOR)
        self._console.file.flush()


def to_html(snapshot: Snapshot) -> str:
    """The frame of a snapshot as HTML without scripts and style sheets."""
    console = Console(record=True, width=_NOTEBOOK_WIDTH, file=io.StringIO(), force_jupyter=False)
    console.print(frame(snapshot, console))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


class NotebookView:
    """Shows frames in the cell that was running when the first one came, in one place, without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = float("-inf")
        self._stage: Stage | None = None

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        if snapshot.stage is not self._stage or snapshot.at >= self._next:
            self.close(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        from IPython.display import display

        self._stage, self._next = snapshot.stage, snapshot.at + _NOTEBOOK_SECONDS
        data = {"text/html": to_html(snapshot), "text/plain": format_line(snapshot)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
