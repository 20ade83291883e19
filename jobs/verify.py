"""Verify an output: ``wedlm-batch verify out/ [--input prompts.parquet]``.

Reads every published row and compares it with the run's ledger and checksums, and with ``--input`` against the
input row by row.

Exit status:
  0  everything agrees
  1  something differs
  2  there is nothing to verify, or it cannot be read
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pipeline
from jobs.cli import Parser, parse_options
from jobs.quiet_end import end_quietly
from pipeline.codec import redact

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.verify") -> int:
    """Print what was checked and found; the exit status."""
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--input", metavar="PATH", help="the input, as given to the run")
    parser.add_argument(
        "--storage-options", type=parse_options, metavar="YAML", help="keyword arguments of the file system of a URL"
    )
    args = parser.parse_args(argv)
    try:
        found = pipeline.verify(args.output, input=args.input, storage_options=args.storage_options)
    except pipeline.PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = {
        "output": found.output,
        "compared with the input": "yes" if found.against_source else "no (--input was not given)",
        "published files": f"{found.parts}, {found.bytes} bytes",
        "units": found.units,
        "input rows": f"{found.rows}, of which {found.failed_rows} failed",
        "output rows": found.output_rows,
        "problems": len(found.problems) + found.more_problems,
    }
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        print(redact(f"{name:<{width}}  {value}"))
    for kind, texts in (("note", found.notes), ("proved", found.proved), ("not proved", found.not_proved)):
        for text in texts:
            print(redact(f"{kind}: {text}"))
    for problem in found.problems:
        print(redact(f"problem: {problem}"))
    if found.more_problems:
        print(f"and {found.more_problems} more")
    print("proven" if found.ok else "NOT proven")
    return 0 if found.ok else 1


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "verify"))
