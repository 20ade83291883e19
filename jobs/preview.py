"""Generate the first rows in this process and print them; write nothing.

Example:
  wedlm-batch preview --input prompts.jsonl --model tiny --rows 3

Does the same as generate --preview ROWS.

Exit status:
  0         done: at least one row succeeded
  1         it failed
  2         configuration, input (also one without rows), model or resources are at fault
  3         done, and every row failed
  130, 143  interrupted
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.cli import NO_OUTPUT, Parser
from jobs.config_options import add_config_options
from jobs.generate import perform
from jobs.quiet_end import end_quietly


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.preview") -> int:
    """Generate and print; the exit status."""
    parser = Parser(prog, __doc__)
    add_config_options(parser)
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="Generate this many rows (3).", dest="preview")
    parser.set_defaults(validate=False, estimate=None, quiet=False)
    args = parser.parse_args(argv)
    args.output = args.output or NO_OUTPUT
    return perform(args)


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "preview"))
