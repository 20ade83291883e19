"""A file of questions from Parquet on an S3 server to Parquet on the same server, through the whole pipeline.

    python -m benchmarks.pipeline.s3_gsm8k questions.jsonl [--actors 2] [--write]

Starts a server of the S3 protocol and a Ray session, both on loopback, puts the rows there as Parquet, runs
them with the shipped model, and compares what is there afterwards with what went in: rows in and out, rows
that are missing or duplicated, columns that came through changed. Ends with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pyarrow as pa

import pipeline
from benchmarks.common import table, write_result
from testing.pipeline.round_trip import run_on_s3
from testing.pipeline.s3 import serve_s3

__all__ = ["main"]


def main() -> int:
    """Run, print, and write the result if asked to; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="JSON Lines with a column of prompts")
    parser.add_argument("--column", default="question")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, help="rows at most")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    lines = args.questions.read_text(encoding="utf-8").splitlines()[: args.limit]
    rows = pa.Table.from_pylist([json.loads(line) for line in lines])
    with serve_s3() as server:
        outcome = run_on_s3(
            server, rows, "questions", model=args.model, actors=args.actors, prompt_column=args.column,
            sampling=pipeline.SamplingParams(max_tokens=args.max_tokens),
        )  # fmt: skip
    body = table(
        ["rows in", "rows out", "missing", "duplicated", "changed", "failed", "tokens", "files", "seconds",
         "re-run, s"],
        [[outcome.rows_in, outcome.rows_out, outcome.missing, outcome.duplicated, outcome.changed, outcome.failed,
          outcome.tokens, outcome.parts, f"{outcome.seconds:.1f}", f"{outcome.again_seconds:.1f}"]],
    )  # fmt: skip
    note = (
        f"{args.actors} actor(s), model `{args.model}`, at most {args.max_tokens} tokens a row; Parquet to Parquet on "
        "a server of the S3 protocol on the same machine, start of Ray and actors included. Compared are the "
        "published files as `pyarrow` reads them, not through this package."
    )
    if args.write:
        command = f"python -m benchmarks.pipeline.s3_gsm8k questions.jsonl --actors {args.actors}"
        write_result("s3-gsm8k", "GSM8K questions from S3 to S3", command, f"{body}\n\n{note}")
    else:
        print(f"{body}\n\n{note}")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
