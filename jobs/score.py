"""Read the log-probabilities of given texts after every prompt, and publish the rows exactly once.

Example:
  wedlm-batch score --input reviews.jsonl --choices good bad --output out --model tiny --chat

Nothing is generated. Prints progress and a summary. After an interruption the same command continues.

Exit status:
  0         done: at least one row succeeded (failed rows are counted, and are dead letters)
  1         the run failed; the same command continues
  2         configuration, input (also one without rows), model, output folder or resources are at fault
  3         done, and every row failed; correct the cause, then --retry-failed, or --mode new
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

from jobs.command import CONTINUES, Command, Parser
from jobs.config_options import SCORE_OPTIONS, add_config_options
from jobs.generate import add_run_options, perform


def add_options(parser: Parser) -> None:
    """The options of a run with a task."""
    add_config_options(parser, SCORE_OPTIONS)
    add_run_options(parser)
    parser.set_defaults(scores=True)


main = Command(name="score", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
