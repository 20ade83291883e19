"""Run a job, and score its texts against a column of expected answers.

Example:
  wedlm-batch evaluate --input sums.jsonl --answer-column answer --scorer numeric --model tiny --output out

Takes the options of generate and writes the same output. If the output is done, the same command only scores again.
For public benchmarks: wedlm-batch lm-eval.

Exit status:
  0         done, and scored
  1         the run failed; the same command continues
  2         configuration, input, model, output, baseline or resources are at fault
  3         done, and every row failed
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import sys

from jobs.cli import add_progress_options, begin_showing, collect
from jobs.command import CONTINUES, Command, Parser
from jobs.config_options import add_config_options
from jobs.generate import end_status
from pipeline import evaluate


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    own = parser.add_argument_group("scores")
    own.add_argument(
        "--answer-column", metavar="NAME", required=True, help="Compare with this column of expected answers."
    )
    own.add_argument("--scorer", required=True, metavar="exact|numeric|choice",
                     help="Compare whole texts, last numbers, or letters of a choice.")  # fmt: skip
    own.add_argument("--baseline", metavar="OUTPUT", help="Compare with this evaluation of the same input.")
    own.add_argument(
        "--confidence", type=float, default=0.95, metavar="SHARE", help="Give intervals of this confidence (0.95)."
    )
    add_progress_options(parser)


def perform(args: argparse.Namespace) -> int:
    """Run the job and score it."""
    shown = begin_showing(args)
    found = evaluate(
        collect(args), answer_column=args.answer_column, scorer=args.scorer, baseline=args.baseline,
        confidence=args.confidence, **shown,
    )  # fmt: skip
    found.summary.table().write(sys.stdout)
    print(found.describe())
    return end_status(found.summary.total.all_failed, "row", "or --mode new")


main = Command(name="evaluate", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
