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

from collections.abc import Sequence

from jobs.cli import NO_OUTPUT, Parser
from jobs.config_options import add_config_options
from jobs.generate import perform
from jobs.quiet_end import end_quietly


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.estimate") -> int:
    """Generate the sample, print its findings; the exit status."""
    parser = Parser(prog, __doc__)
    add_config_options(parser)
    parser.add_argument(
        "--rows", type=int, default=64, metavar="N", help="Sample this many rows (64).", dest="estimate"
    )
    parser.set_defaults(validate=False, preview=None, quiet=False)
    args = parser.parse_args(argv)
    args.output = args.output or NO_OUTPUT
    return perform(args)


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "estimate"))
