"""A sub-command: its parser, its signals, and the lines and the exit status that it ends with."""

from __future__ import annotations

import argparse
import difflib
import errno
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import pipeline
from pipeline.codec import WeDLMError, redact
from wedlm_base.version import VERSION

CONTINUES = "the same command continues from the committed rows"
BEGINS_AGAIN = "nothing was published; the same command begins again"
CUT_OFF = 141
"""Exit status of a command whose reader went away before its work was done: as of a process that SIGPIPE ends."""
_ERRORS = (pipeline.PipelineError, WeDLMError)
"""Errors that end a command with a line."""
_REFUSED = (pipeline.ConfigError, pipeline.SourceError, pipeline.OutputError, pipeline.ResourceError, WeDLMError)
"""Those whose cause is in the command, its input or its output."""


class Parser(argparse.ArgumentParser):
    """A parser with ``--version`` whose errors are short and show no values, which may be credentials."""

    def __init__(self, prog: str | None = None, about: str | None = None) -> None:
        super().__init__(prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False)
        self.add_argument("-h", "--help", action="help", help="Print this help and exit.")
        self.add_argument("--version", action="version", version=f"wedlm-batch {VERSION}",
                          help="Print the version and exit.")  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Print the message and its remedy, and exit with status 2."""
        kind, unknown, words = message.partition("unrecognized arguments:")
        if unknown:
            names = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
            message = f"{kind}{unknown} {' '.join(names) or 'values without an option'}{self._nearest(names)}"
        message = redact(re.sub(r"(--[\w-]+)=\S.*?(?= could match|$)", r"\1=(not shown)", message))
        self.exit(2, f"error: {message} ({self.prog} --help lists every option)\n")

    def _nearest(self, names: list[str]) -> str:
        known = [option for action in self._actions for option in action.option_strings]
        near = [other for name in names for other in difflib.get_close_matches(name, known, n=2, cutoff=0.75)]
        return f"; did you mean {' or '.join(near)}?" if near else ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A sub-command. Called, it returns its exit status.

    Attributes:
        name: of its module.
        about: the text of ``--help``.
        add_options: adds its options to the parser.
        perform: performs it with the parsed options; returns the exit status. ``args.typed`` is the command as it was
            typed: its name and its options.
        continues: of a command that writes rows: the sentence about the next run, after a signal has ended this one.
        prints: whether it only prints; then it is done when its reader goes away.
    """

    name: str
    about: str | None
    add_options: Callable[[Parser], None]
    perform: Callable[[argparse.Namespace], int]
    continues: str = ""
    prints: bool = False

    def __call__(self, argv: Sequence[str] | None = None, prog: str = "") -> int:
        """Parse the options and perform the command."""
        return end_quietly(lambda: self._ended(self.parse(argv, prog)), 0 if self.prints else CUT_OFF)

    def parse(self, argv: Sequence[str] | None = None, prog: str = "") -> argparse.Namespace:
        """The options; ``prog``: the name of the command, as it was typed."""
        parser = Parser(prog or f"python -m jobs.{self.name}", self.about)
        self.add_options(parser)
        given = sys.argv[1:] if argv is None else argv
        args = parser.parse_args(given)
        args.typed = parser.prog, given
        return args

    def _ended(self, args: argparse.Namespace) -> int:
        if not self.continues:
            try:
                return self.perform(args)
            except _ERRORS as error:
                return refused(error, 1 if isinstance(error, pipeline.SinkError) else 2)
        signal.signal(signal.SIGTERM, self._stop)
        try:
            return self.perform(args)
        except _ERRORS as error:
            return refused(error, 2 if isinstance(error, _REFUSED) else 1)
        except KeyboardInterrupt:
            print(f"interrupted: {self.continues}", file=sys.stderr)
            return 130

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """End at once: units in flight are dropped, and done by the next run."""
        print(f"terminated: {self.continues}", file=sys.stderr)
        logging.disable()  # libraries on the way out take this for a fault of theirs, and log it at length
        raise SystemExit(128 + signum)


def refused(error: Exception, status: int = 2) -> int:
    """Print why a command ended; returns ``status``."""
    print(redact(f"error: {error}"), file=sys.stderr)
    return status


def end_quietly(perform: Callable[[], int], cut_off: int = CUT_OFF) -> int:
    """Run a command; returns its exit status.

    No traceback is printed if its reader goes away, as in ``... | head`` (the status is ``cut_off`` then), or if its
    output has no room.
    """
    _open_closed_streams()
    try:
        status = perform()
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return cut_off
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
