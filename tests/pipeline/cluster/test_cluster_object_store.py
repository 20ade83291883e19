"""End to end on a store: real Ray actors and tasks read from and write to a server of the S3 protocol."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest

import pipeline
from testing.pipeline.round_trip import run_on_s3
from testing.pipeline.s3 import S3Server
from wedlm_core import SamplingParams


@pytest.mark.slow(reason="a cluster and a server: 50 s; test_run_object_store has the store without Ray")
def test_from_s3_to_s3_every_row_once(cluster: None, qwen3_folder: Path, s3: S3Server) -> None:
    rows = pa.table({"question": [f"What is {i} + {i}?" for i in range(40)], "answer": [str(2 * i) for i in range(40)]})
    bucket = f"b{secrets.token_hex(6)}"
    outcome = run_on_s3(
        s3, rows, bucket, model=str(qwen3_folder), prompt_column="question", actors=2, unit_rows=4,
        sampling=SamplingParams(max_tokens=8), target_part_bytes=8000,
    )  # fmt: skip
    assert outcome.is_right, outcome
    assert outcome.rows_out == 40
    assert outcome.parts > 1, "parts were written by tasks"
    url = f"s3://{bucket}/out"
    table = pipeline.read(url, format="arrow", storage_options=s3.options)
    assert pipeline.read(url, storage_options=s3.options).dataset.take_all() == table.to_pylist()
    assert pipeline.status(url, storage_options=s3.options)["rows_published"] == 40
    # The published table, as a Ray dataset, is the input of another run, in another format.
    result = pipeline.run(
        pipeline.read(url, format="ray", storage_options=s3.options).select_columns(["question", "text"]),
        output=f"{url}-jsonl",
        model=str(qwen3_folder), prompt_column="question", column_prefix="next_", output_format="jsonl",
        sampling=SamplingParams(max_tokens=2), storage_options=s3.options,
    )  # fmt: skip
    again = result.dataset.take_all()
    assert [row["question"] for row in again] == rows["question"].to_pylist()
    assert [row["text"] for row in again] == table["text"].to_pylist()
    assert [row["next_row_id"] for row in again] == [f"rows:{i}" for i in range(40)]
