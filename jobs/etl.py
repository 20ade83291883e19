"""Process the files of a folder that a table does not hold yet, and append their rows exactly once.

Example:
  wedlm-batch etl --input s3://bucket/prompts/ --output s3://bucket/table/ --model tiny

For schedulers: after a kill at any moment, the next run continues. Without new files it ends at once and starts no Ray.

The options of the group "scheduled runs" may also stand in the configuration file, as fields of a mapping etl:
{partition_key: dt, since: "2026-11-01", on_changed: reprocess, settle_seconds: 60, wait: 600}.

Exit status:
  0         done, or nothing new, or another run is at work (a line says which)
  1         the run failed, or another run was at work for all of --wait; the same command continues
  2         configuration, input (also a changed or missing file), model, output or resources are at fault
  3         done, and every row failed; correct the cause, then --retry-failed
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pipeline
from jobs.cli import add_progress_options, begin_showing, collect_with, print_and_end
from jobs.command import CONTINUES, Command, Parser, refused
from jobs.config_options import add_config_options
from jobs.generate import end_status
from jobs.next_commands import next_commands
from pipeline import ConfigError
from pipeline.commands.etl import describe_counts, etl, plan_etl
from pipeline.commands.etl_config import EtlConfig
from pipeline.plan.intake import ON_CHANGED, Intake

_OWN = tuple(field.name for field in fields(EtlConfig) if field.name != "run")


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    own = parser.add_argument_group("scheduled runs")
    own.add_argument("--since", metavar="VALUE", help="Read from this partition on, such as 2026-11-01.")
    own.add_argument("--until", metavar="VALUE", help="Read up to this partition, inclusive.")
    own.add_argument("--backfill", nargs=2, metavar=("FROM", "TO"),
                     help="Read these partitions in place of --since and --until.")  # fmt: skip
    own.add_argument("--partition-key", metavar="NAME", help="Read partitions from folders named NAME=VALUE (dt).")
    own.add_argument("--on-changed", choices=ON_CHANGED,
                     help="If a processed file has changed or is gone: stop (error, the default), replace or remove "
                          "its rows (reprocess), or keep them (ignore).")  # fmt: skip
    own.add_argument("--settle-seconds", type=float, metavar="S", help="Leave files younger than this to a later run.")
    own.add_argument(
        "--max-files",
        type=int,
        metavar="N",
        help="Publish at most this many files at once (50000); the run does more files in rounds.",
    )
    own.add_argument("--wait", type=float, nargs="?", const=math.inf, metavar="SECONDS",
                     help="Wait for another run of this table to end, for any time or for these seconds.")  # fmt: skip
    parser.add_argument(
        "--print-plan", action="store_true", help="List the files that a run would process, and change nothing."
    )
    add_progress_options(parser)


def perform(args: argparse.Namespace) -> int:
    """Run the job."""
    shown = begin_showing(args, runs=not args.print_plan)
    config = make_config(args)
    if args.print_plan:
        _print_plan(plan_etl(config))
        return 0
    try:
        result = etl(config, **shown)
    except pipeline.LeaseError as error:  # after a wait; without one, that is no fault
        return refused(error, 1)
    if result.summary is None:
        print(result.describe())
    else:
        print(describe_counts(result.counts))
        commands = next_commands(result.summary, config.run, *args.typed, scheduled=True)
        result.summary.table(commands).write(sys.stdout)
    return end_status(result.summary is not None and result.summary.session.all_failed, "row")


def make_config(args: argparse.Namespace) -> EtlConfig:
    """The scheduled job that the parsed options describe.

    Raises:
        ConfigError: an unknown field or a bad value; names it.
        SystemExit: with status 0, after ``--print-config``.
    """
    run, given = collect_with(args, "etl")
    config = EtlConfig(run=run, **_fields(args, given))
    print_and_end(args, run, etl=_schedule(config))
    return config


def _fields(args: argparse.Namespace, given: Any) -> dict[str, Any]:
    """The fields of the schedule: those in the file (``given``), and the options over them."""
    given = given or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"etl: must be a mapping of fields, is a {type(given).__name__}. Write {{since: ...}}.")
    if unknown := [str(name) for name in given if name not in _OWN]:
        raise ConfigError(f"etl: no fields {unknown}. Known: {', '.join(_OWN)}.")
    named = {name: getattr(args, name) for name in _OWN if getattr(args, name) is not None}
    if args.backfill is not None:
        if args.since is not None or args.until is not None:
            raise ConfigError("--backfill has a range of its own. Leave out --since and --until.")
        given = {name: value for name, value in given.items() if name not in ("since", "until")}
    return {**given, **named}


def _schedule(config: EtlConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in _OWN}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _print_plan(intake: Intake) -> None:
    for key in intake.new:
        print(f"new: {key}")
    for key in intake.targets:
        print(f"again, in place of its old rows: {key}")
    for file in intake.removed:
        print(f"gone, its rows are removed: {file.key}")
    for key in intake.ignored:
        print(f"changed or gone, ignored: {key}")
    print(describe_counts(intake.counts, intake.left))


main = Command(name="etl", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
