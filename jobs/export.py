"""Write the published rows of an output in a form that others expect: ``wedlm-batch export out/ --to results.jsonl``.

The input of the run was a file of OpenAI's batch API. Its answers are written to ``--to``, its failed requests to
``--errors-to``, both as the lines that the API returns. The same output gives the same bytes; a file appears whole or
not at all.

Exit status:
  0  written
  2  there is nothing to export, or it cannot be read or written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pipeline
from jobs.cli import Parser, parse_options
from pipeline.codec import WeDLMError, redact

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.export") -> int:
    """Export; the exit status."""
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--to", required=True, metavar="FILE", help="file or URL of the answers")
    parser.add_argument("--errors-to", metavar="FILE", help="of the failed requests; else beside it, NAME_errors.jsonl")
    parser.add_argument("--format", choices=pipeline.EXPORT_FORMATS, default=pipeline.EXPORT_FORMATS[0])
    parser.add_argument("--model", metavar="NAME", help="where the model is now; for tokens of log-probabilities")
    parser.add_argument(
        "--storage-options", type=parse_options, metavar="YAML", help="keyword arguments of the file system of URLs"
    )
    args = parser.parse_args(argv)
    try:
        done = pipeline.export(args.output, args.to, format=args.format, errors_to=args.errors_to, model=args.model,
                               storage_options=args.storage_options)  # fmt: skip
    except (pipeline.PipelineError, WeDLMError, OSError) as error:
        print(redact(f"error: {error}"), file=sys.stderr)
        return 2
    print(f"answers: {done.lines} lines in {done.to}")
    print(f"errors: {done.failed} lines in {done.errors_to}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
