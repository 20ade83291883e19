"""Ends a command without a traceback if its reader goes away, as in ``... | head``, or its output has no room."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

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
    _open_closed_streams()
    try:
        status = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 0 if command in _PRINTS else CUT_OFF
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with suppress(OSError):
            print(
                f"error: no room is left ({error}). Free some, and run the command again.", file=sys.stderr, flush=True
            )
        _drop_output()
        return 1
    return status


def _open_closed_streams() -> None:
    """Open the null device for a closed stream: else the next file that is opened takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _drop_output() -> None:
    """Send the last flush of the process to the null device."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
