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

from jobs.command import BEGINS_AGAIN, Command, Parser
from jobs.config_options import add_config_options
from jobs.generate import perform


def add_options(parser: Parser) -> None:
    """The options of a run."""
    add_config_options(parser)
    parser.set_defaults(scores=False, validate=True, estimate=None, preview=None, quiet=False)


main = Command(
    name="validate", about=__doc__, add_options=add_options, perform=perform, continues=BEGINS_AGAIN, prints=True
)

if __name__ == "__main__":
    raise SystemExit(main())
