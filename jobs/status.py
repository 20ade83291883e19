"""Print the state of an output, also while a run is writing to it.

Example:
  wedlm-batch status out

Exit status:
  0  printed
  2  no run was begun there, or it cannot be read
"""

from __future__ import annotations

import argparse
import json

import pipeline
from jobs.command import Command, Parser
from jobs.config_options import add_output_options
from pipeline.codec import redact


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def perform(args: argparse.Namespace) -> int:
    """Print the state."""
    found = pipeline.status(args.output, storage_options=args.storage_options)
    if args.json:
        print(redact(json.dumps(found, ensure_ascii=False)))
        return 0
    for name, value in found.items():
        print(redact(f"{name}: {_shown(value)}"))
    return 0


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


main = Command(name="status", about=__doc__, add_options=add_options, perform=perform, prints=True)

if __name__ == "__main__":
    raise SystemExit(main())
