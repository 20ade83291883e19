"""The view on a terminal: its frame at any width, and its effect on the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.progress.live import LiveView, frame
from pipeline.progress.snapshot import Actors, Load, Rates, ResourceSeconds, Snapshot, Stage
from pipeline.progress.views import resolve_mode
from pipeline.types import Totals

WIDTHS = (100, 70, 40)
GOING = Snapshot(
    total_rows=1_000_000, done=Totals(units=1500, rows=384_000, failed_rows=17),
    session=Totals(units=1500, rows=384_000, completion_tokens=98_000_000, decode_forwards=30_000_000),
    output="s3://bucket/tables/instructions-2026-11", model="WeDLM-8B-Instruct", at=5450.3, stage=Stage.GENERATING,
    stages={Stage.PLANNING: 2.3, Stage.STARTING: 31.0, Stage.LOADING: 88.4, Stage.COMPILING: 9.2,
            Stage.GENERATING: 5319.4},
    recent=Rates(rows_per_second=72.5, tokens_per_second=18_550),
    actors=Actors(ready=6, starting=2, most=16), load=Load(actors=6, kv_pages_used=8800, kv_pages=12_000),
    used=ResourceSeconds(accelerators=31_000), price_per_hour=2.5, note="waiting for 2 actors",
    eta=8500.0,
)  # fmt: skip


def drawn(snapshot: Snapshot, width: int, **options: object) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, **options)  # type: ignore[arg-type]
    console.print(frame(snapshot, console))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_frame_has_every_stage_and_figure_and_fits(width: int) -> None:
    lines = drawn(GOING, width)
    text = "\n".join(lines)
    for stage in ("planning 2.3 s", "starting 31.0 s", "loading 1:28", "compiling 9.2 s", "publishing"):
        assert stage in text, "no stage is cut by a line's end"
    for value in ("384,000 of 1,000,000", "failed 17", "ends in 2:21:40", "tokens/s 18,550", "rows/s 72.5",
                  "tokens/forward 3.27", "KV in use 73%", "6 of 16 ready, 2 starting", "cost so far 21.53", "38%",
                  "waiting for 2 actors"):  # fmt: skip
        assert value in text
    assert max(map(cell_len, lines)) < width, "the last column stays free"


@pytest.mark.parametrize("width", [*WIDTHS, 20, 25, 250])
def test_a_frame_fits_in_any_width_at_any_stage(width: int) -> None:
    for snapshot in (Snapshot(), replace(GOING, note="n" * 500, output="o" * 500), replace(GOING, stage=Stage.DONE)):
        for line in drawn(snapshot, width):
            assert cell_len(line) <= width


def test_without_colour_and_in_ascii_a_frame_says_the_same() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(width=70, file=file, force_terminal=True, no_color=True, legacy_windows=False)
    console.print(frame(GOING, console))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "+ compiling 9.2 s" in text
    assert "> generating" in text
    assert "-----" in text
    assert "\x1b[3" not in text, "no colour"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, int]]:
    """A terminal's file, and the place to read its output."""
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        yield file, master
    os.close(master)


def read_all(master: int) -> str:
    """Everything that was written to a terminal."""
    os.set_blocking(master, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            found += os.read(master, 65_536)
    return found.decode()


def test_a_terminal_that_can_redraw_is_recognised(
    terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = terminal
    assert resolve_mode("live", file) == "live"
    monkeypatch.setenv("TERM", "dumb")
    assert resolve_mode("live", file) == "lines"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert resolve_mode("live", io.StringIO()) == "lines", "a pipe stays a pipe, whatever is forced"


@pytest.mark.parametrize("done", [True, False])
def test_the_end_shows_the_cursor_gives_the_streams_back_and_leaves_a_frame_if_the_run_was_cut_off(
    terminal: tuple[TextIO, int], done: bool
) -> None:
    file, master = terminal
    before = sys.stdout, sys.stderr
    view = LiveView(file)
    view.update(GOING)
    print("a line of somebody else")
    view.close(replace(GOING, stage=Stage.DONE) if done else GOING)
    assert (sys.stdout, sys.stderr) == before
    written = read_all(master)
    assert written.index("\x1b[?25l") < written.rindex("\x1b[?25h"), "hidden, then shown"
    assert "a line of somebody else\r\n" in written
    erased = written.rpartition("tokens/forward")[2].count("\x1b[2K")
    assert (erased > 3) == done


def test_a_view_that_was_never_shown_writes_nothing(terminal: tuple[TextIO, int]) -> None:
    file, master = terminal
    LiveView(file).close(GOING)
    assert read_all(master) == ""
