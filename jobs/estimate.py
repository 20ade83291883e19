"""Estimate tokens, time and cost of a job from a sample of its rows; write nothing.

Example:
  wedlm-batch estimate --input prompts.jsonl --model tiny --rows 64

Does the same as generate --estimate ROWS.

Exit status:
  0         done: at least one row of the sample succeeded
  1         it failed
  2         configuration, input (also one without rows), model or resources are at fault
  3         done, and every row of the sample failed
  130, 143  interrupted
"""

from __future__ import annotations

from jobs.cli import NO_OUTPUT
from jobs.command import BEGINS_AGAIN, Command, Parser
from jobs.config_options import add_config_options
from jobs.generate import perform


def add_options(parser: Parser) -> None:
    """The options of a run, which needs no output."""
    add_config_options(parser)
    parser.add_argument(
        "--rows", type=int, default=64, metavar="N", help="Sample this many rows (64).", dest="estimate"
    )
    parser.set_defaults(scores=False, validate=False, preview=None, quiet=False, output=NO_OUTPUT)


main = Command(
    name="estimate", about=__doc__, add_options=add_options, perform=perform, continues=BEGINS_AGAIN, prints=True
)

if __name__ == "__main__":
    raise SystemExit(main())
