"""How a command shows the run that it starts: its options and its summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from jobs.cli import show_stages
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.views import PROGRESS_MODES, resolve_mode

_OFFERED = [mode for mode in PROGRESS_MODES if mode != "notebook"]


def add_progress_options(parser: argparse._ActionsContainer) -> None:
    """``--progress``, ``--progress-seconds`` and ``--quiet``."""
    parser.add_argument("--progress", choices=_OFFERED, default="auto",
                        help="Show the run on standard error: in one place of a terminal (live), as lines of key=value "
                             "for logs (lines), or not at all (none); auto (the default) chooses.")  # fmt: skip
    parser.add_argument("--progress-seconds", type=float, default=LINE_SECONDS, metavar="S",
                        help=f"Print a line every so many seconds ({LINE_SECONDS:g}).")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="Print only the summary: no progress and no stages.")


def begin_showing(args: argparse.Namespace, *, runs: bool = True) -> Mapping[str, Any]:
    """Show the stages as lines, where there is no live view.

    Args:
        args: the options of :func:`add_progress_options`.
        runs: whether the command starts a run, which has a view of its own. If not, ``quiet`` is all that it needs.

    Returns:
        The arguments ``progress`` and ``progress_seconds`` of :func:`pipeline.run`.

    Raises:
        ConfigError: a bad value.
    """
    if not runs:
        if not args.quiet:
            show_stages()
        return {}
    mode = "none" if args.quiet else resolve_mode(args.progress, sys.stderr)
    if mode == "lines":
        show_stages()  # the live view has them
    return {"progress": mode, "progress_seconds": args.progress_seconds}
