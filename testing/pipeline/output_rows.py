"""Made-up output rows of any kind that an output may have, for tests of aggregates over them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.schema import RESULT_FIELDS, output_schema

INPUTS = pa.schema([("prompt", pa.string()), ("k", pa.int64())])


def output_table(rows: int, seed: int = 0, *, prefix: str = "", samples: int = 1) -> pa.Table:
    """Output rows: some failed, some of other strategies, with nulls where outputs have them."""
    rng = np.random.default_rng(seed)
    made = [_row(rng, number, sample) for number in range(rows) for sample in range(samples)]
    fields = [field.with_name(prefix + field.name) for field in RESULT_FIELDS]
    schema = output_schema(INPUTS, fields)
    columns = {name: [row.get(name.removeprefix(prefix)) for row in made] for name in schema.names}
    return pa.table(columns, schema=schema)


def _row(rng: np.random.Generator, number: int, sample: int) -> dict[str, Any]:
    failed = rng.random() < 0.1
    plain = {"prompt": f"prompt {number} <b>", "k": number, "row_id": f"in.jsonl:{number}", "sample_index": sample,
             "model": "tiny", "seed": number, "top_logprobs": None}  # fmt: skip
    if failed:
        names = ("text", "token_ids", "prompt_tokens", "completion_tokens", "strategy", "params_hash", "logprobs",
                 "stats", "timings")  # fmt: skip
        return {**plain, **dict.fromkeys(names), "finish_reason": "error", "error": f"bad value {number}"}
    tokens = int(rng.integers(0, 200))
    forwards = int(rng.integers(0, tokens + 1))
    verified = rng.random() < 0.7
    commits = rng.integers(0, 6, size=rng.integers(0, 8)).tolist()
    stats = {
        "decode_forwards": forwards,
        "rows_forwarded": int(rng.integers(0, 5000)),
        "tokens_per_forward": tokens / max(1, forwards),
        "prefix_cacheability": float(rng.random() * 2.2),
        "commit_histogram": commits,
        "mean_entropy": None if not tokens else float(rng.exponential(0.1)),
        "max_entropy": None if not tokens else float(rng.exponential(1.0)),
        "out_of_order_fills": int(rng.integers(0, 9)),
        "mean_logprob": -float(rng.exponential(0.1)) if verified else None,
        "draft_agreement": float(rng.random()) if verified else None,
        "cached_prompt_tokens": int(rng.integers(0, 9)),
        "preemptions": int(rng.integers(0, 2)),
        "window_mean": float(rng.random() * 40),
        "max_window": 40,
    }
    logprobs = [math.nan if rng.random() < 0.01 else -float(v) for v in rng.exponential(0.2, size=min(tokens, 5))]
    return {
        **plain,
        "text": f"text {number}",
        "token_ids": list(range(tokens)),
        "finish_reason": "stop" if rng.random() < 0.8 else "length",
        "error": None,
        "prompt_tokens": int(rng.integers(1, 5000)),
        "completion_tokens": tokens,
        "strategy": "verified" if verified else "streaming",
        "params_hash": "0" * 16,
        "logprobs": logprobs if rng.random() < 0.5 else None,
        "stats": stats,
        "timings": {"queue_seconds": float(rng.exponential()), "run_seconds": float(rng.exponential())},
    }
