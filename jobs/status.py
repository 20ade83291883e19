"""State of an output, also while a run is writing to it: ``python -m jobs.status out/``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pipeline

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state; the exit status (2: no run there)."""
    parser = argparse.ArgumentParser(prog="python -m jobs.status", description=__doc__)
    parser.add_argument("output")
    args = parser.parse_args(argv)
    try:
        found = pipeline.status(args.output)
    except pipeline.OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in found.items():
        print(f"{name}: {f'{value:.3f}' if isinstance(value, float) else value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
