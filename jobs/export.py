"""Write the rows of an output as results of an OpenAI batch, or to a Delta table.

Example:
  wedlm-batch export out --to results.jsonl

--format openai-batch (the default): the input of the run was a file of OpenAI's batch API. Answers go to --to, failed
requests to --errors-to, both as the lines that the API returns. The same output gives the same bytes, and a file
appears whole or not at all.

--format delta: --to is a Delta table (needs the extra delta). The table gets one commit for each publication that it
does not have yet. Run the command after each run; after a kill the same command continues.

Exit status:
  0  written, or there already
  1  the Delta table could not be written; the same command continues
  2  there is nothing to export, or it cannot be read or written
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pipeline
from jobs.cli import ERRORS, Parser, refused
from jobs.config_options import add_output_options, parse_options
from jobs.quiet_end import end_quietly

_DELTA = "delta"


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.export") -> int:
    """Export; the exit status."""
    parser = Parser(prog, __doc__)
    add_output_options(parser)
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="Write answers to this file, or rows to this Delta table."
    )
    parser.add_argument("--format", choices=[*pipeline.EXPORT_FORMATS, _DELTA],
                        default=pipeline.EXPORT_FORMATS[0], help="Write this format (openai-batch).")  # fmt: skip
    parser.add_argument("--errors-to", metavar="FILE", help="Write failed requests to this file (NAME_errors.jsonl).")
    parser.add_argument("--model", metavar="NAME", help="Read the tokens of log-probabilities from this model.")
    parser.add_argument("--append", action="store_true", help="Append to a Delta table that has rows of other writers.")
    parser.add_argument(
        "--delta-options",
        type=parse_options,
        metavar="YAML",
        help="Pass these options to the table's store, by deltalake's names.",
    )
    args = parser.parse_args(argv)
    try:
        lines = _delta(args) if args.format == _DELTA else _openai_batch(args)
    except (*ERRORS, OSError) as error:
        return refused(error, but=pipeline.SinkError)
    print("\n".join(lines))
    return 0


def _openai_batch(args: argparse.Namespace) -> list[str]:
    done = pipeline.export(args.output, args.to, format=args.format, errors_to=args.errors_to, model=args.model,
                           storage_options=args.storage_options)  # fmt: skip
    return [f"answers: {done.lines} lines in {done.to}", f"errors: {done.failed} lines in {done.errors_to}"]


def _delta(args: argparse.Namespace) -> list[str]:
    done = pipeline.export_delta(args.output, args.to, append=args.append, storage_options=args.storage_options,
                                 delta_options=args.delta_options)  # fmt: skip
    what = f"committed {', '.join(done.committed)}, {done.rows} rows" if done.committed else "had everything already"
    return [f"{done.table}: {what}; version {done.version}"]


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "export"))
