"""Progress by rich: a frame in a fixed place of a terminal, drawn a few times a second; the same in a notebook."""

from __future__ import annotations

import atexit
import io
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.progress.figures import (
    cells_of,
    chain_rows,
    clock_time,
    failure_lines,
    format_line,
    short_time,
    stage_marks,
)
from pipeline.progress.snapshot import Snapshot, Stage

_LEAST_WIDTH = 20
_CELL_WIDTH = 30
"""Columns that a figure with its label takes at least."""
_RATIOS = (5, 4, 5)
"""Widths of the columns of figures, where all of them fit side by side."""
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
    parts = [head, _stages(snapshot, width, marks), _bars(snapshot, width, marks), _cells(snapshot, width), *failed]
    return Constrain(Group(*parts, _line(snapshot.note, "dim")), width)


def _stages(snapshot: Snapshot, width: int, marks: dict[str, str]) -> Text:
    lines = [Text()]
    for mark in stage_marks(snapshot):
        spent = "" if mark.state == "future" else f" {short_time(mark.seconds)}"
        stage = f"{marks[mark.state]}{mark.label}{spent}"
        if lines[-1] and lines[-1].cell_len + 2 + len(stage) > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else "").append(stage, style=_STYLES[mark.state])
    return Text("\n").join(lines)


def _bars(snapshot: Snapshot, width: int, marks: dict[str, str]) -> Table | Text:
    """The bar of the run; of a chain a line for each stage: name, bar (where there is room), share and rows."""
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    if not snapshot.chain:
        grid.add_column(ratio=1)
        grid.add_row(_bar(snapshot.share), f"{int(snapshot.share * 100)}%" if snapshot.total_rows else "")
        return grid
    lines = []
    grid.add_column(no_wrap=True, overflow="crop", max_width=width // 3)
    grid.add_column(ratio=1)
    for row in chain_rows(snapshot):
        name = Text(marks[row.state] + row.name, style=_STYLES[row.state], overflow="crop", no_wrap=True)
        share = "" if row.share is None else f"{int(row.share * 100)}% "
        text = Text(f"{share}{row.text}").append(f"  {row.failed}" if row.failed else "", style="bold red")
        lines.append(Text.assemble(name, " ", text))
        grid.add_row(name, Text() if row.share is None else _bar(row.share), text)
    return grid if width >= _WIDE else Text("\n", no_wrap=True, overflow="crop").join(lines)


def _cells(snapshot: Snapshot, width: int) -> Table:
    per_line = max(1, min(len(_RATIOS), width // _CELL_WIDTH))
    grid = Table.grid(expand=True, padding=(0, 1))
    for place in range(per_line):
        grid.add_column(ratio=_RATIOS[place] if per_line == len(_RATIOS) else 1, no_wrap=True, overflow="crop")
    texts = [
        Text(f"{cell.label} ", style="dim").append(cell.value, style="not dim bold red" if cell.alarming else "not dim")
        for cell in cells_of(snapshot)
    ]
    for first in range(0, len(texts), per_line):
        grid.add_row(*texts[first : first + per_line])
    return grid


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")


def _bar(share: float) -> ProgressBar:
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
