"""Chooses how a run is shown: ``auto``, ``live``, ``lines``, ``none``, or an observer of the caller's own.

rich is imported only where a view needs it.
"""

from __future__ import annotations

import math
import sys
from typing import Literal, TextIO, get_args

from pipeline.codec import explain
from pipeline.errors import ConfigError
from pipeline.progress.log_lines import LINE_SECONDS, Lines
from pipeline.progress.observers import Observer

__all__ = ["PROGRESS_MODES", "ProgressMode", "in_notebook", "resolve_mode", "views"]

ProgressMode = Literal["auto", "live", "lines", "notebook", "none"]
PROGRESS_MODES: tuple[ProgressMode, ...] = get_args(ProgressMode)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel. Imports nothing: where there is none, IPython is not loaded."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def resolve_mode(mode: ProgressMode, file: TextIO | None = None) -> ProgressMode:
    """Resolve ``auto``, and ``live`` where a view cannot be redrawn; other modes stay.

    ``auto`` is ``notebook`` in a kernel, ``live`` where ``file`` is a terminal that can redraw lines, else ``lines``.

    Args:
        mode: as it was asked for.
        file: where it will be written; None: standard error.

    Raises:
        ConfigError: it is no mode.
    """
    if mode not in PROGRESS_MODES:
        raise ConfigError(explain("progress", mode, f"one of {', '.join(PROGRESS_MODES)}", 'Use "auto".'))
    if mode == "auto" and in_notebook():
        return "notebook"
    if mode in ("auto", "live"):
        from pipeline.progress.live import can_show

        return "live" if can_show(file or sys.stderr) else "lines"
    return mode


def views(
    progress: ProgressMode | Observer, seconds: float = LINE_SECONDS, file: TextIO | None = None
) -> tuple[Observer, ...]:
    """The observers for ``progress``.

    Args:
        progress: a mode, or an observer.
        seconds: between two lines.
        file: where views are written; None: standard error.

    Raises:
        ConfigError: it is neither; or ``seconds`` is no number above 0.
    """
    if not isinstance(seconds, int | float) or not (0 < seconds < math.inf):
        raise ConfigError(explain("progress_seconds", seconds, "a number of seconds above 0", "Use 10."))
    if not isinstance(progress, str):
        if all(callable(getattr(progress, name, None)) for name in ("update", "close")):
            return (progress,)
        rule = f"one of {', '.join(PROGRESS_MODES)}, or an object with update(snapshot) and close(snapshot)"
        raise ConfigError(explain("progress", progress, rule, 'Use "auto".'))
    file = file or sys.stderr
    mode = resolve_mode(progress, file)
    if mode in ("live", "notebook"):
        from pipeline.progress.live import LiveView, NotebookView

        return (LiveView(file) if mode == "live" else NotebookView(),)
    return (Lines(file, seconds),) if mode == "lines" else ()
