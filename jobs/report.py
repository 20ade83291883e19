"""Write the report of an output, one page that needs no network: ``wedlm-batch report out/ --to report.html``.

Runs write it to OUTPUT/__wedlm/report.html by themselves; this makes it again, also of an output that was interrupted,
that a run is writing to, or that an earlier version made.

Exit status:
  0  written
  2  no run was begun there, it cannot be read, or the page cannot be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pipeline
from jobs.cli import Parser, parse_options
from jobs.quiet_end import end_quietly
from pipeline.codec import WeDLMError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.report") -> int:
    """Write the page, and print where it is; the exit status (2: it could not be made)."""
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--to", type=Path, metavar="FILE", help="a local file; OUTPUT/__wedlm/report.html otherwise")
    parser.add_argument(
        "--model", metavar="NAME", help="decode some rows once more with the model that made the output, and show how"
    )
    parser.add_argument(
        "--storage-options", type=parse_options, metavar="YAML", help="keyword arguments of the file system of a URL"
    )
    args = parser.parse_args(argv)
    try:
        print(pipeline.report(args.output, to=args.to, model=args.model, storage_options=args.storage_options))
    except (pipeline.PipelineError, WeDLMError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "report"))
