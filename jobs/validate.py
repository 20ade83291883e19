"""Check model, input and settings; generate nothing.

Example:
  wedlm-batch validate --input prompts.jsonl --output out --model tiny

Does the same as generate --validate.

Exit status:
  0         a run could begin
  2         it could not; each problem is named
  130, 143  interrupted
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.cli import Parser
from jobs.config_options import add_config_options
from jobs.generate import perform
from jobs.quiet_end import end_quietly


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.validate") -> int:
    """Check and print; the exit status."""
    parser = Parser(prog, __doc__)
    add_config_options(parser)
    parser.set_defaults(validate=True, estimate=None, preview=None, quiet=False)
    return perform(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "validate"))
