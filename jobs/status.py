"""Print the state of an output, also while a run is writing to it.

Example:
  wedlm-batch status out

Exit status:
  0  printed
  2  no run was begun there, or it cannot be read
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pipeline
from jobs.cli import ERRORS, Parser, refused
from jobs.config_options import add_output_options
from jobs.quiet_end import end_quietly
from pipeline.codec import redact


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.status") -> int:
    """Print the state; the exit status (2: no run there)."""
    parser = Parser(prog, __doc__)
    add_output_options(parser)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    args = parser.parse_args(argv)
    try:
        found = pipeline.status(args.output, storage_options=args.storage_options)
    except ERRORS as error:
        return refused(error)
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


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "status"))
