"""Rows from Parquet on an S3 server through a whole run and back, compared with the input."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from testing.pipeline.s3 import S3Server

_ROWS_PER_FILE = 500


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Input and output rows.

    Attributes:
        rows_in, rows_out: of the input, and of the published table as plain Parquet.
        missing, duplicated: ids of rows that are not there, or there more than once.
        changed: rows whose input columns have changed.
        failed: rows without a generation.
        tokens: generated.
        parts: published files.
        seconds: of ``pipeline.run``, the start of Ray and the actors included.
        again_seconds: of the same call on the finished output.
    """

    rows_in: int
    rows_out: int
    missing: int
    duplicated: int
    changed: int
    failed: int
    tokens: int
    parts: int
    seconds: float
    again_seconds: float

    @property
    def is_right(self) -> bool:
        """Every row once and unchanged."""
        return self.rows_in == self.rows_out and not (self.missing or self.duplicated or self.changed or self.failed)


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
        duplicated=sum(count > 1 for count in ids.values()),
        changed=sum(expected.get(row_id) != values for row_id, values in found),
        failed=result.summary.total.failed_rows,
        tokens=result.summary.total.completion_tokens,
        parts=len(parts),
        seconds=seconds,
        again_seconds=again_seconds,
    )
