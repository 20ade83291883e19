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
from dataclasses import asdict
from typing import Any

sys.path.insert(0, os.getcwd())

import torch

from wedlm_core import LLM, EngineConfig, Generation, Request, SamplingParams
from wedlm_core.config import StepCost
from wedlm_core.engine import Engine


def main() -> None:
    """Answer each line of standard input with one line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may write between the answers
    engine: Engine | None = None
    passage: Passage | None = None
    for number, line in enumerate(sys.stdin):
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        if "model" in order:
            engine = load(order)
            answer = asdict(engine.measure_step_cost())
        elif "requests" in order:
            assert engine is not None
            passage = Passage(engine, order["requests"], order["concurrency"], number)
        else:
            assert passage is not None
            answer = passage.go_on(order["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


def load(order: dict[str, Any]) -> Engine:
    """The engine, with the step cost of the order unless that is empty."""
    torch.set_num_threads(order["threads"])
    cost: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in order["step_cost"].items()
    }
    config = EngineConfig(**order["config"], step_cost=StepCost(**cost) if cost else None)
    return LLM(order["model"], config=config, device="cpu", dtype=order["dtype"]).engine


class Passage:
    """Decodes requests, a turn at a time.

    Args:
        engine: empty.
        wanted: prompts and parameters.
        concurrency: sequences at once.
        number: is part of the ids of the requests.
    """

    def __init__(self, engine: Engine, wanted: list[dict[str, Any]], concurrency: int, number: int) -> None:
        self._engine, self._concurrency = engine, concurrency
        # One thread is timed in seconds of its processor, which other programs do not take.
        self._clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        self._waiting = deque(
            Request(
                request_id=f"{number}.{i}",
                prompt_token_ids=tuple(one["prompt"]),
                params=SamplingParams(**one["params"]),
                seed=i,
            )
            for i, one in enumerate(wanted)
        )
        self._ids = [request.request_id for request in self._waiting]
        self._running, self._done = set[str](), dict[str, Generation]()
        self._seconds, self._rate = 0.0, 0.0
        gc.collect()

    def go_on(self, seconds: float) -> dict[str, Any]:
        """Decode for so many seconds; at the end, tokens per second at full load and a digest of all tokens."""
        begin = last = self._clock()
        while last - begin < seconds and (self._waiting or self._running):
            self._step()
            now = self._clock()
            self._seconds, last = self._seconds + now - last, now
            if not self._rate and not self._waiting and len(self._running) < self._concurrency:
                # From here on the batch drains. A job drains once, but every pass would: so it does not count.
                tokens = sum(len(one.token_ids) for one in self._done.values())
                tokens += sum(len(self._engine.committed(i)) for i in self._running)
                self._rate = tokens / self._seconds
        if self._waiting or self._running:
            return {"ends": False}
        ids = [self._done[i].token_ids for i in self._ids]
        return {"ends": True, "rate": self._rate, "digest": hashlib.sha256(repr(ids).encode()).hexdigest()}

    def _step(self) -> None:
        while self._waiting and len(self._running) < self._concurrency:
            request = self._waiting.popleft()
            self._engine.add(request)
            self._running.add(request.request_id)
        for generation in self._engine.step():
            self._done[generation.request_id] = generation
            self._running.discard(generation.request_id)


if __name__ == "__main__":
    main()
