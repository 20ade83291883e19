"""Progress on a terminal: one view in a fixed place, redrawn a few times a second, gone when the run is done."""

from __future__ import annotations

import atexit
from typing import TextIO

from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pipeline.progress.figures import cells_of, chain_rows, clock_time, failure_lines, short_time, stage_marks
from pipeline.progress.snapshot import Snapshot, Stage

__all__ = ["Frame", "LiveView", "can_show"]

_LEAST_WIDTH = 20
_CELL_WIDTH = 30
"""Columns that a figure with its label takes at least."""
_RATIOS = (5, 4, 5)
"""Widths of the columns of figures, where all of them fit side by side."""
_GAP = 1
_LEAST_BAR = 8
_SHOW_CURSOR = "\x1b[?25h"
_MARKS = {"past": ("✓ ", "green"), "present": ("● ", "bold cyan"), "future": ("  ", "dim")}
_PLAIN_MARKS = {"past": "+ ", "present": "> ", "future": "  "}
"""Where the terminal's encoding has no others."""


def can_show(file: TextIO) -> bool:
    """Whether a stream is a terminal that can redraw lines."""
    console = Console(file=file)
    return console.is_terminal and not console.is_dumb_terminal and file.isatty()


class Frame:
    """What is shown of a snapshot, as a rich renderable that fits in any width.

    Args:
        snapshot: what to show.
        heights: lines of the highest frame so far by width, kept here. A frame is filled up to it, so that what is
            below stays where it is.
    """

    def __init__(self, snapshot: Snapshot, heights: dict[int, int] | None = None) -> None:
        self.snapshot = snapshot
        self._heights = {} if heights is None else heights

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render within ``options.max_width``, less one column: some terminals wrap a line that is full."""
        snapshot, plain = self.snapshot, options.ascii_only
        cut: OverflowMethod = "crop" if plain else "ellipsis"  # an ellipsis is no ASCII
        width = max(_LEAST_WIDTH, options.max_width - 1)
        inner = options.update(width=width, max_width=width)
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(ratio=1, no_wrap=True, overflow=cut)
        head.add_column(justify="right", no_wrap=True)
        title = Text(snapshot.model, style="bold").append(f" to {snapshot.output}", style="not bold")
        head.add_row(title, Text(clock_time(snapshot.at), style="dim"))
        stages = self._stages(width, plain=plain)
        note = Text(snapshot.note, style="dim", no_wrap=True, overflow=cut)
        bars = self._chain(width, cut, plain=plain) if snapshot.chain else self._bar(width, plain=plain)
        failed = Text("\n", style="red", no_wrap=True, overflow=cut).join(map(Text, failure_lines(snapshot)))
        parts = (head, stages, bars, self._cells(width, cut), *([failed] if failed else []), note)
        lines = [line for part in parts for line in console.render_lines(part, inner, pad=False)]
        self._heights[width] = max(len(lines), self._heights.get(width, 0))
        for line in [*lines, *([[]] * (self._heights[width] - len(lines)))]:
            yield from line
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as there is room."""
        return Measurement(_LEAST_WIDTH, options.max_width)

    def _stages(self, width: int, *, plain: bool) -> Text:
        lines = [Text()]
        for mark in stage_marks(self.snapshot):
            sign, style = _MARKS[mark.state]
            sign = _PLAIN_MARKS[mark.state] if plain else sign
            spent = "" if mark.state == "future" else f" {short_time(mark.seconds)}"
            stage = f"{sign}{mark.label}{spent}"
            if lines[-1] and lines[-1].cell_len + 2 + len(stage) > width:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append(stage, style=style)
        return Text("\n").join(lines)

    def _bar(self, width: int, *, plain: bool) -> Table:
        snapshot = self.snapshot
        grid = Table.grid(padding=(0, 1))
        share = f"{int(snapshot.share * 100)}%" if snapshot.total_rows else ""
        grid.add_row(_bar(snapshot.share, width - (8 if plain else 6), plain=plain), Text(share))
        return grid

    def _chain(self, width: int, cut: OverflowMethod, *, plain: bool) -> Table | Text:
        """The stages of a chain, a line each: name, bar and rows; where there is no room for that, two lines each."""
        rows = chain_rows(self.snapshot)
        texts = [Text(row.text, style="dim" if row.state == "future" else "") for row in rows]
        for row, text in zip(rows, texts, strict=True):
            text.append(f"  {row.failed}" if row.failed else "", style="bold red")
        marks = _PLAIN_MARKS if plain else {state: sign for state, (sign, _) in _MARKS.items()}
        names = [Text(marks[row.state] + row.name, style=_MARKS[row.state][1]) for row in rows]
        shares = ["" if row.share is None else f"{int(row.share * 100)}%" for row in rows]
        widest = min(max(name.cell_len for name in names), width // 3)
        room = width - widest - max(text.cell_len for text in texts) - len("100%") - 3 * _GAP
        if room < _LEAST_BAR:
            lines = zip(names, shares, texts, strict=True)
            pairs = ((name.append(f" {share}"), Text("  ").append(text)) for name, share, text in lines)
            return Text("\n", no_wrap=True, overflow=cut).join(line for pair in pairs for line in pair)
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(width=widest, no_wrap=True, overflow=cut)
        grid.add_column(width=room)
        grid.add_column(width=len("100%"), justify="right")
        grid.add_column(no_wrap=True)
        for row, name, share, text in zip(rows, names, shares, texts, strict=True):
            grid.add_row(name, Text() if row.share is None else _bar(row.share, room, plain=plain), share, text)
        return grid

    def _cells(self, width: int, cut: OverflowMethod) -> Table:
        per_line = max(1, min(len(_RATIOS), width // _CELL_WIDTH))
        grid = Table.grid(expand=True, padding=(0, 1))
        for place in range(per_line):
            grid.add_column(ratio=_RATIOS[place] if per_line == len(_RATIOS) else 1, no_wrap=True, overflow=cut)
        texts = [
            Text(f"{cell.label} ", style="dim").append(
                cell.value, style="not dim bold red" if cell.alarming else "not dim"
            )
            for cell in cells_of(self.snapshot)
        ]
        for first in range(0, len(texts), per_line):
            grid.add_row(*texts[first : first + per_line])
        return grid


def _bar(share: float, width: int, *, plain: bool) -> Text | ProgressBar:
    if plain:
        filled = int(share * width)
        return Text("#" * filled + "." * (width - filled))
    return ProgressBar(total=1.0, completed=share, width=width, complete_style="cyan", finished_style="green")


class LiveView:
    """Shows frames on a terminal; what others print meanwhile appears above. Its end leaves the terminal as it was.

    A finished run leaves no frame behind: its summary follows. One that ends early leaves the last one.
    """

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file)
        self._heights: dict[int, int] = {}
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop",
            redirect_stdout=True, redirect_stderr=True,
        )  # fmt: skip

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        if not self._live.is_started:
            atexit.register(self._show_cursor)  # for ends that no block of ours sees
            self._live.start()
        self._live.update(Frame(snapshot, self._heights), refresh=True)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        if not self._live.is_started:
            return
        self._live.transient = snapshot.stage is Stage.DONE
        self._live.update(Frame(snapshot, self._heights), refresh=True)
        self._live.stop()
        atexit.unregister(self._show_cursor)

    def _show_cursor(self) -> None:
        self._console.file.write(_SHOW_CURSOR)
        self._console.file.flush()
