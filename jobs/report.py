"""Write the report of an output: one page that needs no network. With two outputs, print a comparison.

Example:
  wedlm-batch report out --to report.html

A run writes the page to OUTPUT/__wedlm/report.html at its end. This command writes it again, also for an output whose
run was interrupted, is still going on, or was made by an earlier version.

Exit status:
  0  written, or printed
  2  no run was begun there, it cannot be read, or the page cannot be written
"""

from __future__ import annotations

from collections.abc import Sequence

import pipeline
from jobs.cli import ERRORS, Parser, refused
from jobs.config_options import add_output_options, parse_path
from jobs.quiet_end import end_quietly


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.report") -> int:
    """Write the page and print where it is, or print the comparison; the exit status (2: it could not be made)."""
    parser = Parser(prog, __doc__)
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
    args = parser.parse_args(argv)
    if args.other is not None and (args.to is not None or args.model is not None):
        parser.error("--to and --model are for the page of one output, and two are given. Leave them out")
    try:
        if args.other is not None:
            print(pipeline.compare(args.output, args.other, storage_options=args.storage_options).describe())
            return 0
        print(pipeline.report(args.output, to=args.to, model=args.model, storage_options=args.storage_options))
    except ERRORS as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "report"))
