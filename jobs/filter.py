"""Keep the good rows of an output in a new one, and list the dropped rows with their reasons.

Example:
  wedlm-batch filter out --to out-best --keep "best 50%"

KEEP is an SQL expression over a row's columns, or the best rows, with or without a condition:
  "evidence.worst_logprob > -3 and finish_reason = 'stop'"
  "best 50%"    "best 1000"    "best 1 per row"    "best 20% where not evidence.truncated"
A second run adds nothing. After a kill it begins again, and leaves nothing half done.

Exit status:
  0         done
  1         it failed
  2         a setting or an output is at fault
  130, 143  interrupted
"""

from __future__ import annotations

import argparse
from typing import Any

import yaml

import pipeline
from jobs.command import BEGINS_AGAIN, Command, Parser
from jobs.config_options import add_output_options, read_yaml
from pipeline.selection.score import SCORES
from pipeline.selection.settings import DEFAULT_SAMPLE_SCORE, DEFAULT_SCORE
from pipeline.settings.values import choices_of

_DEFAULTS = f"{DEFAULT_SCORE}; {DEFAULT_SAMPLE_SCORE} for samples of a row"


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument("--to", required=True, metavar="FOLDER", help="Write the kept rows to this folder.")
    parser.add_argument("--keep", metavar="KEEP", help="Keep these rows, see above (all).")
    parser.add_argument("--score", metavar="SCORE",
                        help=f"Rank rows by {', '.join(SCORES)}, or an SQL expression ({_DEFAULTS}).")  # fmt: skip
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN",
                        help="Apply shares and numbers to each group with one value here (repeatable).")  # fmt: skip
    parser.add_argument("--dedup", nargs="?", const=True, type=_plain, metavar="YAML",
                        help="Drop near-duplicates of better rows, from this similarity on (0.8).")  # fmt: skip
    parser.add_argument("--outliers", nargs="?", const=True, type=_plain, metavar="YAML",
                        help="Drop rows of unusual length or script ({length: 4, script_share: 0.01}).")  # fmt: skip
    parser.add_argument("--selection-column", default="selection", metavar="NAME",
                        help="Write score and rank of kept rows to this column (selection).")  # fmt: skip
    parser.add_argument(
        "--mode",
        choices=choices_of(pipeline.RunConfig, "mode"),
        default="resume",
        help="If FOLDER exists, continue it (the default), discard it, or stop.",
    )


def perform(args: argparse.Namespace) -> int:
    """Filter, and print the rows kept and dropped."""
    done = pipeline.filter(
        args.output, to=args.to, keep=args.keep, score=args.score, by=args.by, dedup=args.dedup,
        outliers=args.outliers, selection_column=args.selection_column, mode=args.mode,
        storage_options=args.storage_options,
    )  # fmt: skip
    print(done.describe())
    return 0


def _plain(text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        raise argparse.ArgumentTypeError("not YAML. Write a number, true, or {field: value}") from None


main = Command(
    name="filter",
    about=__doc__,
    add_options=add_options,
    perform=perform,
    continues=BEGINS_AGAIN,
)

if __name__ == "__main__":
    raise SystemExit(main())
