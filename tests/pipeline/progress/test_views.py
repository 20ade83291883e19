"""The view that a run gets, and refusals."""

from __future__ import annotations

import io
import os
import pty
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.progress.figures import Lines
from pipeline.progress.live import LiveView
from pipeline.progress.snapshot import Snapshot
from pipeline.progress.views import resolve_mode, views


class Own:
    def update(self, snapshot: Snapshot) -> None: ...

    def close(self, snapshot: Snapshot) -> None: ...


def test_a_terminal_gets_the_live_view_and_a_pipe_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as file:
        assert [type(one) for one in views("auto", file=file)] == [LiveView]
        assert [type(one) for one in views("lines", file=file)] == [Lines]
        assert views("none", file=file) == ()
    os.close(master)
    pipe = io.StringIO()
    assert resolve_mode("auto", pipe) == "lines"
    assert resolve_mode("live", pipe) == "lines", "nothing can be redrawn there"


def test_an_observer_of_the_callers_own_is_taken() -> None:
    own = Own()
    assert views(own) == (own,)


@pytest.mark.parametrize("wrong", ["lively", "", print, 3, None])
def test_what_is_no_view_is_refused_with_a_remedy(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r'progress=.*: one of auto, live, lines.*Use "auto"'):
        views(wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "5"])
def test_seconds_between_lines_are_above_0(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"progress_seconds=.*above 0"):
        views("lines", wrong)
