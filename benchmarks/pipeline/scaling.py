"""Rows per second of several actors over those of one, each with one torch thread, in runs of equal length.

    python -m benchmarks.pipeline.scaling [--rows 16000] [--actors 2] [--repeats 2]

One actor is given ``--rows`` rows and N actors N times as many, so that both runs take about as long. In turns, each in
a process of its own, warm: the clock runs from the first engine that is ready to the last unit that is staged, so a
later start of the other engines counts. Beside them, what the machine itself allows: bare engines without Ray, one
alone and N at the same time.
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
from benchmarks.pipeline.efficiency import prompts_of
from pipeline.codec import SamplingParams

__all__ = ["main"]

_MODULE = "benchmarks.pipeline.scaling"


def piped(rows: int, actors: int, model: str, max_tokens: int) -> dict[str, Any]:
    """Rows through ``pipeline.run``."""
    import pipeline

    with tempfile.TemporaryDirectory(prefix="wedlm-scaling-") as folder:
        source = Path(folder) / "prompts.parquet"
        pq.write_table(pa.table({"prompt": prompts_of(rows)}), source)
        begin = time.perf_counter()
        result = pipeline.run(
            str(source), model=model, output=f"{folder}/out", actors=actors, num_threads=1, device="cpu",
            sampling=SamplingParams(max_tokens=max_tokens),
        )  # fmt: skip
        wall = time.perf_counter() - begin
    summary = result.summary
    return {
        "rows": summary.total.rows,
        "tokens": summary.total.completion_tokens,
        "seconds": summary.generating_seconds,
        "wall": wall,
        "start": summary.start_up.worst.get("all", 0.0),
    }


def bare(rows: int, model: str, max_tokens: int) -> dict[str, Any]:
    """Rows through one engine in this process, without Ray; it waits for a line on standard input before it begins."""
    import torch

    from wedlm_core import LLM

    torch.set_num_threads(1)
    llm, params = LLM(model, device="cpu"), SamplingParams(max_tokens=max_tokens)
    llm.generate(prompts_of(64), params)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    out = llm.generate(prompts_of(rows), params)
    return {"rows": rows, "tokens": sum(len(g.token_ids) for g in out), "seconds": time.perf_counter() - begin}


def _command(kind: str, args: argparse.Namespace, rows: int, actors: int) -> list[str]:
    return [sys.executable, "-m", _MODULE, "--child", kind, "--rows", str(rows), "--actors", str(actors),
            "--model", args.model, "--max-tokens", str(args.max_tokens)]  # fmt: skip


def _piped_in_own_process(args: argparse.Namespace, actors: int) -> dict[str, Any]:
    command = _command("piped", args, args.rows * actors, actors)
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    )
    print(f"{actors} actor(s)", found, flush=True)
    return found


def _bare_at_once(args: argparse.Namespace, engines: int) -> dict[str, Any]:
    """So many bare engines that begin together."""
    command = _command("bare", args, args.rows, 1)
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(engines)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    found = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    whole = {"rows": sum(one["rows"] for one in found), "tokens": sum(one["tokens"] for one in found),
             "seconds": max(one["seconds"] for one in found)}  # fmt: skip
    print(f"{engines} bare engine(s)", whole, flush=True)
    return whole


def _rate(found: dict[str, Any]) -> float:
    return float(found["rows"] / found["seconds"])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000, help="of each actor")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--model", default="tiny", help="name or folder")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--child", choices=("bare", "piped"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child == "bare":
        print(json.dumps(bare(args.rows, args.model, args.max_tokens)))
        return
    if args.child == "piped":
        print(json.dumps(piped(args.rows, args.actors, args.model, args.max_tokens)))
        return
    rounds = [
        (_piped_in_own_process(args, 1), _piped_in_own_process(args, args.actors), _bare_at_once(args, 1),
         _bare_at_once(args, args.actors))
        for _ in range(args.repeats)
    ]  # fmt: skip
    _report(args, rounds)


def _report(args: argparse.Namespace, rounds: Sequence[tuple[dict[str, Any], ...]]) -> None:
    ratios = [_rate(many) / _rate(one) for one, many, _, _ in rounds]
    machine = [_rate(many) / _rate(one) for _, _, one, many in rounds]
    names = ("1 actor", f"{args.actors} actors", "1 bare engine", f"{args.actors} bare engines at once")
    rows = [
        (number, name, one["rows"], one["seconds"], _rate(one), one.get("wall", "-"), one.get("start", "-"))
        for number, found in enumerate(rounds, 1)
        for name, one in zip(names, found, strict=True)
    ]
    each, limit = (", ".join(f"{ratio:.2f}" for ratio in some) for some in (ratios, machine))
    body = "\n".join(
        [
            f"{args.rows} rows for each actor, model `{args.model}`, at most {args.max_tokens} tokens a row, one torch "
            "thread each.",
            "",
            table(("round", "what", "rows", "seconds", "rows/s", "whole command, s", "slowest start, s"), rows),
            "",
            f"- {args.actors} actors over 1: **{statistics.median(ratios):.2f}** ({each})",
            f"- {args.actors} bare engines over 1, what the machine allows: {statistics.median(machine):.2f} ({limit})",
        ]
    )
    command = f"python -m {_MODULE} --rows {args.rows} --actors {args.actors} --repeats {args.repeats}"
    write_result("scaling", f"Scaling from 1 to {args.actors} actors", command, body, threads=1)


if __name__ == "__main__":
    main()
