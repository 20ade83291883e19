"""Run several stages as one job: generate, judge, rewrite and so on.

Example:
  wedlm-batch chain --config chain.yaml

The file has the fields of generate, which all stages share, and the field stages: a list of mappings with a name and
the stage's own fields (sampling, prompt_template, parse, columns and so on). Each stage has an output of its own, a
folder with its name in the output. A stage begins with the first rows that the stage before it has committed. After an
interruption the same command continues.

Exit status:
  0         done
  1         the run failed; the same command continues
  2         configuration, input, model, output folder or resources are at fault
  3         done, and every row of a stage failed
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import sys

import pipeline
from jobs.cli import add_progress_options, begin_showing, collect_with, print_and_end
from jobs.command import CONTINUES, Command, Parser
from jobs.config_options import add_config_options
from jobs.generate import end_status
from jobs.next_commands import commands_of_chain, commands_of_stages
from pipeline.commands.chain_config import ChainConfig


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    parser.add_argument("--redo", metavar="STAGE", help="Discard this stage and all later stages, and run them again.")
    add_progress_options(parser)


def perform(args: argparse.Namespace) -> int:
    """Run the job."""
    prog, argv = args.typed
    shown = begin_showing(args)
    config = make_config(args)
    summary = pipeline.chain(config, **shown).summary
    of_stages = commands_of_stages(summary, config, prog)
    summary.table(of_stages, commands_of_chain(summary, config, prog, argv)).write(sys.stdout)
    return end_status(summary.all_failed, "row of a stage", "or --redo STAGE")


def make_config(args: argparse.Namespace) -> ChainConfig:
    """The chain that the parsed options describe.

    Raises:
        ConfigError: an unknown field or a bad value; names it.
        SystemExit: with status 0, after ``--print-config``.
    """
    base, given = collect_with(args, "stages")
    config = ChainConfig.of(base, given, args.redo)
    print_and_end(args, base, stages=given)
    return config


main = Command(name="chain", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
