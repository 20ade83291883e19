"""Write the report of an output: one page that needs no network. With two outputs, print a comparison.

Example:
  wedlm-batch report out --to report.html

A run writes the page to OUTPUT/__wedlm/report.html at its end. This command writes it again, also for an output whose
run was interrupted, is still going on, or was made by an earlier version.

Exit status:
  0  written, or printed
  1  the page could not be stored; the same command tries again
  2  no run was begun there, it cannot be read, or --to cannot be written
"""

from __future__ import annotations

import argparse

import pipeline
from jobs.command import Command, Parser
from jobs.config_options import add_output_options, parse_path


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument(
        "other", nargs="?", metavar="OTHER", help="Compare with this output: settings, speed and quality side by side."
    )
    parser.add_argument(
        "--to", type=parse_path, metavar="FILE", help="Write the page to this local file (OUTPUT/__wedlm/report.html)."
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="Decode some rows again with the model that made the output, and show each step.",
    )


def perform(args: argparse.Namespace) -> int:
    """Write the page and print where it is, or print the comparison."""
    if args.other is None:
        print(pipeline.report(args.output, to=args.to, model=args.model, storage_options=args.storage_options))
        return 0
    if args.to is not None or args.model is not None:
        raise pipeline.ConfigError(
            "--to and --model are for the page of one output, and two are given. Leave them out."
        )
    print(pipeline.compare(args.output, args.other, storage_options=args.storage_options).describe())
    return 0


main = Command(name="report", about=__doc__, add_options=add_options, perform=perform)

if __name__ == "__main__":
    raise SystemExit(main())
