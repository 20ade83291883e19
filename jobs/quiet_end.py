"""Ends a command whose reader has enough, as ``... | head`` has, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["CUT_OFF", "end_quietly"]

CUT_OFF = 141
"""Exit status of a command that had more to do than to print: that of a process which SIGPIPE ends."""
_PRINTS = ("status", "validate", "preview", "estimate", "verify")
"""Commands that only print: with a reader that has enough they are done."""


def end_quietly(main: Callable[[], int | None], command: str) -> int:
    """Run a command; its exit status.

    Args:
        main: the command.
        command: its name.
    """
    try:
        status = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # what is flushed at the end of the process goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 0 if command in _PRINTS else CUT_OFF
    return status
