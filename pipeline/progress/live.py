"""Progress by rich: a frame in a fixed place of a terminal, drawn a few times a second; the same in a notebook."""

from __future__ import annotations

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
    clock_time,
    count,
    failure_lines,
    figures_of,
    format_line,
    short_time,
    stage_rows,
)
from pipeline.progress.snapshot import Snapshot, Stage

_LEAST_WIDTH = 20
_FIGURE_WIDTH = 33
"""Columns of a figure with its label."""
_NO_TIME = 0.05
_NOTEBOOK_WIDTH = 100
_STYLES = {"past": "green", "present": "bold cyan", "future": "dim"}
_MARKS = {"past": "✓ ", "present": "● ", "future": "  "}
_ASCII_MARKS = {"past": "+ ", "present": "> ", "future": "  "}


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
    stages = Columns(_stages(snapshot, marks), padding=(0, 2, 0, 0))
    figures = [_figure(label, value) for label, value in figures_of(snapshot).items()]
    fixed = Columns(figures, width=min(width, _FIGURE_WIDTH), padding=0)
    return Constrain(Group(head, stages, bars, fixed, *failed, _line(snapshot.note, "dim")), width)


def _stages(snapshot: Snapshot, marks: dict[str, str]) -> list[Text]:
    """The stages in their order. One that the run went through unseen, or in no time, is left out."""
    now = list(Stage).index(snapshot.stage)
    found = []
    for place, stage in enumerate(Stage):
        seconds = snapshot.stages.get(stage, 0.0)
        begun = seconds >= _NO_TIME
        to_come = place == now or (place > now and stage is not Stage.FILTERING)
        if stage is not Stage.DONE and (begun or to_come):
            state = "present" if place == now else "past" if begun else "future"
            spent = "" if state == "future" else f" {short_time(seconds)}"
            found.append(_line(f"{marks[state]}{stage.value}{spent}", _STYLES[state]))
    return found


def _bar(snapshot: Snapshot) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(ratio=1)
    grid.add_row(_progress_bar(snapshot.share), f"{int(snapshot.share * 100)}%" if snapshot.total_rows else "")
    return grid


def _chain(snapshot: Snapshot, width: int, marks: dict[str, str]) -> Table:
    """A line for each stage: name, share and rows, and a bar where there is room."""
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, overflow="crop", min_width=_LEAST_WIDTH // 2, max_width=max(_LEAST_WIDTH, width) // 2)
    grid.add_column(no_wrap=True, overflow="crop")
    grid.add_column(ratio=1)
    for own in snapshot.chain:
        done = own.done
        state = "past" if 0 < own.units == done.units else "present" if done.units else "future"
        text = Text(f"{int(own.share * 100)}% {stage_rows(own)}")
        text.append(f"  {count(done.failed_rows)} failed" if done.failed_rows else "", style="bold red")
        grid.add_row(_line(marks[state] + own.name, _STYLES[state]), text, _progress_bar(own.share))
    return grid


def _figure(label: str, value: str) -> Text:
    alarming = label == "failed" and value != "0"
    style = "not dim bold red" if alarming else "not dim"
    return Text(f"{label} ", style="dim", no_wrap=True, overflow="crop").append(value, style=style)


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
            self._live.start()
        self._live.update(frame(snapshot, self._console), refresh=True)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        if not self._live.is_started:
            return
        self._live.transient = snapshot.stage is Stage.DONE
        self._live.update(frame(snapshot, self._console), refresh=True)
        self._live.stop()


def to_html(snapshot: Snapshot) -> str:
    """The frame of a snapshot as HTML without scripts and style sheets."""
    console = Console(record=True, width=_NOTEBOOK_WIDTH, file=io.StringIO(), force_jupyter=False)
    console.print(frame(snapshot, console))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


class NotebookView:
    """Shows frames in the cell that was running when the first one came, in one place, without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        from IPython.display import display

        data = {"text/html": to_html(snapshot), "text/plain": format_line(snapshot)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    close = update
