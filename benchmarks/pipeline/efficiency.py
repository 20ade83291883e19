"""Committed tokens per second of ``pipeline.run`` over those of the bare engine on the same prompts.

    python -m benchmarks.pipeline.efficiency [--rows 16000] [--repeats 2] [--strategy verified]

Both in processes of their own, in turns, one torch thread, warm: the engine is ready when the clock starts, so that
loading the model and starting Ray and its processes are left out. The pipeline's clock runs until its last unit is
staged; the share of publishing is shown apart. The bare engine is given all requests at once, tokenised beforehand.
Both have to generate the same number of tokens. Rows per token say whether both chose windows alike; they do not depend
on the machine's load, unlike seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import table, write_result
from pipeline.codec import make_requests

__all__ = ["main"]

MAX_TOKENS = 128


def prompts_of(rows: int) -> list[str]:
    """Counting tasks of different lengths."""
    return [f"Count from {i % 97} to {i % 97 + 10 + i % 33}." for i in range(rows)]


def bare(rows: int, strategy: str) -> dict[str, Any]:
    """All rows through one engine in this process."""
    import torch

    from wedlm_core import LLM, SamplingParams

    torch.set_num_threads(1)
    llm = LLM("tiny", device="cpu")
    params = SamplingParams(max_tokens=MAX_TOKENS, strategy=strategy)
    llm.generate(prompts_of(64), params)
    requests = [
        request
        for i, prompt in enumerate(prompts_of(rows))
        for request in make_requests(str(i), f"prompts.parquet:{i}", llm.tokenizer.encode(prompt), params, 0)
    ]
    begin = time.perf_counter()
    for request in requests:
        llm.engine.add(request)
    tokens = rows_forwarded = 0
    while llm.engine.has_work():
        done = llm.engine.step()
        tokens += sum(len(generation.token_ids) for generation in done)
        rows_forwarded += sum(generation.stats.rows_forwarded for generation in done)
    seconds = time.perf_counter() - begin
    return {"tokens": tokens, "rows": rows_forwarded, "seconds": seconds, "publishing": 0.0}


def piped(rows: int, strategy: str) -> dict[str, Any]:
    """The same rows through ``pipeline.run`` with one actor."""
    import pipeline

    with tempfile.TemporaryDirectory(prefix="wedlm-efficiency-") as folder:
        source = Path(folder) / "prompts.parquet"
        pq.write_table(pa.table({"prompt": prompts_of(rows)}), source)
        last = [0.0]

        def on_progress(progress: pipeline.Progress) -> None:
            last[0] = time.perf_counter()

        result = pipeline.run(
            str(source), model="tiny", output=f"{folder}/out", num_threads=1, on_progress=on_progress,
            sampling=pipeline.SamplingParams(max_tokens=MAX_TOKENS, strategy=strategy),
        )  # fmt: skip
        end = time.perf_counter()
    summary = result.summary
    return {
        "tokens": summary.total.completion_tokens,
        "rows": summary.total.rows_forwarded,
        "seconds": summary.generating_seconds,
        "publishing": end - last[0],
    }


def _in_own_process(kind: str, rows: int, strategy: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.pipeline.efficiency", "--child", kind, "--rows", str(rows),
               "--strategy", strategy]  # fmt: skip
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    print(kind, found, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--strategy", default="verified")
    parser.add_argument("--child", choices=("bare", "piped"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps((bare if args.child == "bare" else piped)(args.rows, args.strategy)))
        return
    pairs = []
    for number in range(args.repeats):
        order = ("bare", "piped") if number % 2 == 0 else ("piped", "bare")
        found = {kind: _in_own_process(kind, args.rows, args.strategy) for kind in order}
        if found["bare"]["tokens"] != found["piped"]["tokens"]:
            raise AssertionError(f"both ways have to give the same tokens: {found}")
        pairs.append((found["bare"], found["piped"]))
    _report(pairs, args)


def _report(pairs: list[tuple[dict[str, Any], dict[str, Any]]], args: argparse.Namespace) -> None:
    lines = [
        (b["tokens"], b["tokens"] / b["seconds"], p["tokens"] / p["seconds"], b["rows"] / b["tokens"],
         p["rows"] / p["tokens"], p["seconds"], p["publishing"],
         round((p["tokens"] / p["seconds"]) / (b["tokens"] / b["seconds"]), 3))
        for b, p in pairs
    ]  # fmt: skip
    header = ("tokens", "bare engine, tokens/s", "pipeline.run, tokens/s", "bare rows/token", "pipeline rows/token",
              "pipeline s", "publishing s", "efficiency")  # fmt: skip
    body = table(header, lines)
    body += (
        f"\n\nMedian efficiency {statistics.median(line[-1] for line in lines):.3f}. {args.rows} rows, strategy "
        f"{args.strategy}, greedy, at most {MAX_TOKENS} tokens, one actor with one torch thread; model load and start "
        "of Ray left out of both, publishing left out of the rate."
    )
    command = f"python -m benchmarks.pipeline.efficiency --rows {args.rows} --repeats {args.repeats}"
    write_result("pipeline-efficiency", "The pipeline against the bare engine", command, body, threads=1)


if __name__ == "__main__":
    main()
