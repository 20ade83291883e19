"""Committed tokens per second of ``pipeline.run`` over those of the bare engine on the same prompts.

    python -m benchmarks.pipeline.efficiency [--rows 16000] [--repeats 2] [--strategy verified]
    python -m benchmarks.pipeline.efficiency --device cuda --model FOLDER [--max-tokens 256] [--ignore-eos]

Both in processes of their own, in turns, one torch thread on a CPU, warm: the engine is ready when the clock starts, so
that loading the model and starting Ray and its processes are left out. The pipeline's clock runs until its last unit is
staged; the share of publishing is shown apart. The bare engine is given all requests at once, tokenised beforehand.
Both have to generate the same number of tokens. Rows per token say whether both chose the same
windows; they do not depend on the machine's load, unlike seconds.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import table, write_result
from pipeline.codec import SamplingParams, make_requests

_WAYS = ("bare", "piped")


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The work of both ways, and its model."""

    rows: int
    strategy: str
    model: str
    device: str
    max_tokens: int
    ignore_eos: bool

    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, strategy=self.strategy, ignore_eos=self.ignore_eos)

    def options(self) -> list[str]:
        """The command line that asks for it."""
        named = ("rows", "strategy", "model", "device", "max_tokens")
        own = [word for name in named for word in (f"--{name.replace('_', '-')}", str(getattr(self, name)))]
        return own + ["--ignore-eos"] * self.ignore_eos


def prompts_of(rows: int) -> list[str]:
    """Counting tasks of different lengths."""
    return [f"Count from {i % 97} to {i % 97 + 10 + i % 33}." for i in range(rows)]


def bare(case: _Case) -> dict[str, Any]:
    """All rows through one engine in this process."""
    import torch

    from wedlm_core import LLM

    torch.set_num_threads(1)
    llm = LLM(case.model, device=case.device)
    params = case.params()
    llm.generate(prompts_of(64), params)
    requests = [
        request
        for i, prompt in enumerate(prompts_of(case.rows))
        for request in make_requests(str(i), f"prompts.parquet:{i}", llm.tokenizer.encode_prompt(prompt), params, 0)
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


def piped(case: _Case) -> dict[str, Any]:
    """The same rows through ``pipeline.run`` with one actor, which shows nothing."""
    import pipeline

    with tempfile.TemporaryDirectory(prefix="wedlm-efficiency-") as folder:
        source = Path(folder) / "prompts.parquet"
        pq.write_table(pa.table({"prompt": prompts_of(case.rows)}), source)
        last = [0.0]

        def on_progress(progress: pipeline.Progress) -> None:
            last[0] = time.perf_counter()

        result = pipeline.run(
            str(source), model=case.model, output=f"{folder}/out", num_threads=1, device=case.device,
            on_progress=on_progress, sampling=case.params(), progress="none",
        )  # fmt: skip
        end = time.perf_counter()
    summary = result.summary
    return {
        "tokens": summary.total.completion_tokens,
        "rows": summary.total.rows_forwarded,
        "seconds": summary.generating_seconds,
        "publishing": end - last[0],
    }


def _in_own_process(kind: str, case: _Case) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.pipeline.efficiency", "--child", kind, *case.options()]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    print(kind, found, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--strategy", default="verified")
    parser.add_argument("--model", default="tiny", help="name or folder")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--ignore-eos", action="store_true", help="for random weights: every row has the same length")
    parser.add_argument("--child", choices=_WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    case = _Case(rows=args.rows, strategy=args.strategy, model=args.model, device=args.device,
                 max_tokens=args.max_tokens, ignore_eos=args.ignore_eos)  # fmt: skip
    if args.child:
        print(json.dumps({"bare": bare, "piped": piped}[args.child](case)))
        return
    turns = []
    for number in range(args.repeats):
        order = _WAYS if number % 2 == 0 else _WAYS[::-1]
        found = {kind: _in_own_process(kind, case) for kind in order}
        if len({own["tokens"] for own in found.values()}) > 1:
            raise AssertionError(f"all ways have to give the same tokens: {found}")
        turns.append(found)
    _report(turns, case)


def _report(turns: list[dict[str, dict[str, Any]]], case: _Case) -> None:
    lines = []
    for own in turns:
        rate = {kind: found["tokens"] / found["seconds"] for kind, found in own.items()}
        b, p = own["bare"], own["piped"]
        line = [b["tokens"], rate["bare"], rate["piped"], b["rows"] / b["tokens"], p["rows"] / p["tokens"],
                p["seconds"], p["publishing"], round(rate["piped"] / rate["bare"], 3)]  # fmt: skip
        lines.append(tuple(line))
    header = ["tokens", "bare engine, tokens/s", "pipeline.run, tokens/s", "bare rows/token", "pipeline rows/token",
              "pipeline s", "publishing s", "efficiency"]  # fmt: skip
    body = table(tuple(header), lines)
    body += (
        f"\n\nMedian efficiency {statistics.median(line[7] for line in lines):.3f}. Greedy; one actor; model load "
        "and start of Ray left out of both, publishing left out of the rate."
    )
    command = f"python -m benchmarks.pipeline.efficiency {' '.join(case.options())} --repeats {len(turns)}"
    device = "-cuda" if case.device == "cuda" else ""
    write_result(f"pipeline-efficiency{device}", "The pipeline against the bare engine", command, body, threads=1)


if __name__ == "__main__":
    main()
