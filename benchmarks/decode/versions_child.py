"""One checkout's engine, with its orders on standard input; see :mod:`benchmarks.decode.versions`.

Runs by its path, with the checkout it measures as working folder, and knows public names of ``wedlm_core`` only, so
that the same measuring code runs older and newer engines.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections import deque
from typing import Any

sys.path.insert(0, os.getcwd())

import torch

from wedlm_core import LLM, EngineConfig, Request, SamplingParams


def main() -> None:
    """Answer each line of standard input with one line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may write between the answers
    llm: LLM | None = None
    for number, line in enumerate(sys.stdin):
        order: dict[str, Any] = json.loads(line)
        if "model" in order:
            torch.set_num_threads(order["threads"])
            llm = LLM(order["model"], config=EngineConfig(**order["config"]), device="cpu", dtype=order["dtype"])
            answer: dict[str, Any] = {}
        else:
            assert llm is not None
            answer = run(llm, order["requests"], order["concurrency"], number)
        print(json.dumps(answer), file=answers, flush=True)


def run(llm: LLM, wanted: list[dict[str, Any]], concurrency: int, number: int) -> dict[str, Any]:
    """Decode; tokens per second until fewer sequences are left than run at once, and a digest of all tokens."""
    waiting = deque(
        Request(
            request_id=f"{number}.{i}",
            prompt_token_ids=tuple(one["prompt"]),
            params=SamplingParams(**one["params"]),
            seed=i,
        )
        for i, one in enumerate(wanted)
    )
    gc.collect()
    engine, done, seconds, tokens = llm.engine, {}, None, 0
    running: set[str] = set()
    begin = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < concurrency:
            request = waiting.popleft()
            engine.add(request)
            running.add(request.request_id)
        for generation in engine.step():
            done[generation.request_id] = generation
            running.discard(generation.request_id)
        if seconds is None and not waiting and len(running) < concurrency:
            seconds = time.perf_counter() - begin
            tokens = sum(len(g.token_ids) for g in done.values()) + sum(len(engine.committed(i)) for i in running)
    ids = [done[f"{number}.{i}"].token_ids for i in range(len(wanted))]
    return {"rate": tokens / (seconds or 1e-9), "digest": hashlib.sha256(repr(ids).encode()).hexdigest()}


if __name__ == "__main__":
    main()
