"""A file of questions from Parquet on an S3 server to Parquet on the same server, through the whole pipeline.

    python -m benchmarks.s3_gsm8k questions.jsonl [--actors 2] [--write]

Starts a server of the S3 protocol and a Ray session, both on loopback, puts the rows there as Parquet, runs
them with the shipped model, and compares what is there afterwards with what went in: rows in and out, rows
that are missing or doubled, columns that came through changed. Ends with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.common import table, write_result
from tests.support.s3 import S3Server, serve_s3

__all__ = ["Outcome", "main", "run_on_s3"]

_ROWS_PER_FILE = 500


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What went in and what came out.

    Attributes:
        rows_in, rows_out: of the input, and of the published table as plain Parquet.
        missing, doubled: ids of rows that are not there, or there more than once.
        changed: rows whose input columns are not what went in.
        failed: rows without a generation.
        tokens: generated.
        parts: published files.
        seconds: of ``pipeline.run``, the start of Ray and the actors included.
        again_seconds: of the same call on the finished output.
    """

    rows_in: int
    rows_out: int
    missing: int
    doubled: int
    changed: int
    failed: int
    tokens: int
    parts: int
    seconds: float
    again_seconds: float

    @property
    def is_right(self) -> bool:
        """Every row once and unchanged."""
        return self.rows_in == self.rows_out and not (self.missing or self.doubled or self.changed or self.failed)


def run_on_s3(server: S3Server, rows: pa.Table, bucket: str, **fields: Any) -> Outcome:
    """Put ``rows`` on the server, run, and compare; ``fields``: of the run's configuration."""
    url = server.bucket(bucket)
    fs = fsspec.filesystem("s3", **server.options)
    for i in range(0, rows.num_rows, _ROWS_PER_FILE):
        with fs.open(f"{bucket}/in/questions-{i:06d}.parquet", "wb") as file:
            pq.write_table(rows.slice(i, _ROWS_PER_FILE), file, row_group_size=100)
    settings = {"output": f"{url}/out", "storage_options": server.options, **fields}
    begin = time.monotonic()
    result = pipeline.run(f"{url}/in", **settings)
    middle = time.monotonic()
    again = pipeline.run(f"{url}/in", **settings)
    end = time.monotonic()
    assert again.summary.session.rows == 0
    return _compare(fs, bucket, rows, result, middle - begin, end - middle)


def _compare(
    fs: Any, bucket: str, rows: pa.Table, result: pipeline.RunResult, seconds: float, again_seconds: float
) -> Outcome:
    """The published files, as a reader without this package sees them, against the input."""
    parts = sorted(fs.glob(f"{bucket}/out/data-*/*.parquet"))
    published = pa.concat_tables(pq.read_table(fs.open(part)) for part in parts)
    ids = Counter(published["row_id"].to_pylist())
    files = [(f"questions-{i // _ROWS_PER_FILE * _ROWS_PER_FILE:06d}.parquet", i % _ROWS_PER_FILE)
             for i in range(rows.num_rows)]  # fmt: skip
    expected = {f"{name}:{row}": values for (name, row), values in zip(files, rows.to_pylist(), strict=True)}
    names = rows.column_names
    found = zip(published["row_id"].to_pylist(), published.select(names).to_pylist(), strict=True)
    return Outcome(
        rows_in=rows.num_rows,
        rows_out=published.num_rows,
        missing=len(expected.keys() - ids.keys()),
        doubled=sum(count > 1 for count in ids.values()),
        changed=sum(expected.get(row_id) != values for row_id, values in found),
        failed=result.summary.total.failed_rows,
        tokens=result.summary.total.completion_tokens,
        parts=len(parts),
        seconds=seconds,
        again_seconds=again_seconds,
    )


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
        ["rows in", "rows out", "missing", "doubled", "changed", "failed", "tokens", "files", "seconds", "re-run, s"],
        [[outcome.rows_in, outcome.rows_out, outcome.missing, outcome.doubled, outcome.changed, outcome.failed,
          outcome.tokens, outcome.parts, f"{outcome.seconds:.1f}", f"{outcome.again_seconds:.1f}"]],
    )  # fmt: skip
    note = (
        f"{args.actors} actor(s), model `{args.model}`, at most {args.max_tokens} tokens a row; Parquet to Parquet on "
        "a server of the S3 protocol on the same machine, start of Ray and actors included. Compared are the "
        "published files as `pyarrow` reads them, not through this package."
    )
    if args.write:
        command = f"python -m benchmarks.s3_gsm8k questions.jsonl --actors {args.actors}"
        write_result("s3-gsm8k", "GSM8K questions from S3 to S3", command, f"{body}\n\n{note}")
    else:
        print(f"{body}\n\n{note}")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
