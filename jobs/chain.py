"""Several stages as one job: ``wedlm-batch chain --config chain.yaml``.

The file has the fields of `generate`, which all stages share, and `stages`: a list of mappings with a `name` and the
stage's own fields (sampling, prompt_template, parse, columns, ...). Each stage has an output of its own, a folder of
its name below `output`; it begins with what the one before has committed. Interrupted or killed, the same command
continues.

Exit status:
  0         done
  1         the run failed; the same command continues
  2         configuration, input, model, output folder or resources are at fault
  3         done, and every row of a stage failed
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

import pipeline
from jobs.cli import Parser, add_config_options, collect, show_stages
from jobs.generate import RUN_ENDS, report_end, stop
from jobs.quiet_end import end_quietly
from jobs.resolved_yaml import as_yaml
from pipeline import Progress, format_progress
from pipeline.commands.chain_config import ChainConfig

__all__ = ["main"]

_ALL_FAILED = 3
_SECONDS_BETWEEN_LINES = 2.0


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.chain") -> int:
    """Run the job; the exit status."""
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config_options(parser)
    parser.add_argument("--redo", metavar="STAGE", help="discard this stage and those after it, and do them again")
    parser.add_argument("--quiet", action="store_true", help="print the summary only, neither progress nor stages")
    return perform(parser.parse_args(argv))


def perform(args: argparse.Namespace) -> int:
    """What the parsed options ask for; the exit status."""
    signal.signal(signal.SIGTERM, stop)
    if not args.quiet:
        show_stages()
    try:
        config = make_config(args)
        result = pipeline.chain(config, on_progress=None if args.quiet else _Printer())
    except RUN_ENDS as error:
        return report_end(error)
    print(result.summary.describe())
    if not result.summary.all_failed:
        return 0
    print(
        "error: every row of a stage failed; correct the cause, then --retry-failed, or --redo STAGE", file=sys.stderr
    )
    return _ALL_FAILED


def make_config(args: argparse.Namespace) -> ChainConfig:
    """The chain that the parsed options describe.

    Raises:
        ConfigError: an unknown field or a bad value; names it.
        SystemExit: with status 0, after ``--print-config``.
    """
    apart: dict[str, Any] = {"stages": None}
    printing, args.print_config = args.print_config, False
    base = collect(args, apart)
    config = ChainConfig.of(base, apart["stages"], args.redo)
    if printing:
        print(as_yaml(base) + yaml.safe_dump({"stages": apart["stages"]}, sort_keys=False), end="")
        raise SystemExit(0)
    return config


class _Printer:
    """Prints a line for each stage that got on, at most every two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def __call__(self, name: str, progress: Progress) -> None:
        now = self._clock()
        if progress.session.units and now - self._last.get(name, -math.inf) >= _SECONDS_BETWEEN_LINES:
            self._last[name] = now
            print(f"{name}: {format_progress(progress)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "chain"))
