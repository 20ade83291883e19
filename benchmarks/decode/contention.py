"""Decoding beside busy processes, with one thread and with two that run each forward together.

    python -m benchmarks.decode.contention [--rounds 3]

Every measurement is a process of its own. Numbers of threads and of busy processes alternate within a round. A busy
process computes without pause, as another actor would.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.common import table, write_result

__all__ = ["main"]

THREADS = (1, 2)
BUSY = (0, 1, 2)
_MODELS = ("tiny", "25M")
_WARM, _SECONDS = 2.0, 4.0


def main() -> None:
    """Measure all combinations and write the table; or, as a child, measure one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=_MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _measure(args.child, args.threads)
        return
    found: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(args.rounds):
        for model in _MODELS:
            for busy in BUSY:
                for threads in THREADS:
                    with _busy(busy):
                        rate = _in_a_process(model, threads)
                    found.setdefault((model, busy, threads), []).append(rate)
                    print(model, busy, threads, f"{rate:.0f} tokens/s", flush=True)
    header = ("model", "busy processes", "one thread, tokens/s", "two threads, tokens/s", "two over one",
              "two over two without busy processes", "ranges")  # fmt: skip
    rows = []
    for model in _MODELS:
        for busy in BUSY:
            one, two = (found[model, busy, threads] for threads in THREADS)
            middle, idle = [statistics.median(rates) for rates in (one, two)], statistics.median(found[model, 0, 2])
            ranges = f"{min(one):.0f}-{max(one):.0f}, {min(two):.0f}-{max(two):.0f}"
            rows.append((model, busy, f"{middle[0]:.0f}", f"{middle[1]:.0f}", f"{middle[1] / middle[0]:.2f}",
                         f"{middle[1] / idle:.2f}", ranges))  # fmt: skip
    body = f"{table(header, rows)}\n\nMedians of {args.rounds} processes each, alternating; 8 sequences, "
    body += f"autoregressive, float32, {_SECONDS:.0f} s after {_WARM:.0f} s of warming up."
    write_result("contention", "Decoding beside busy processes",
                 f"python -m benchmarks.decode.contention --rounds {args.rounds}", body, threads=2)  # fmt: skip


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes that compute without pause, for the duration of the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _in_a_process(model: str, threads: int) -> float:
    command = [sys.executable, "-m", "benchmarks.decode.contention", "--child", model, "--threads", str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def _measure(model: str, threads: int) -> None:
    """Decode for a few seconds and print tokens per second."""
    import torch

    from benchmarks.decode.models import random_model
    from wedlm_core import EngineConfig, Request, SamplingParams
    from wedlm_core.engine import Engine
    from wedlm_core.model.sources import resolve
    from wedlm_core.model.weights import load_model
    from wedlm_core.tokenizer import Tokenizer

    torch.set_num_threads(threads)
    decoder = load_model(resolve("tiny")) if model == "tiny" else random_model()
    engine = Engine(decoder, Tokenizer.load(resolve("tiny")), EngineConfig(max_num_seqs=8, max_model_len=1024))
    params = SamplingParams(max_tokens=900, ignore_eos=True, strategy="autoregressive")
    number = 0

    def run(seconds: float) -> float:
        nonlocal number
        begin, before = time.perf_counter(), engine.snapshot().counters.tokens
        while time.perf_counter() - begin < seconds:
            while engine.num_unfinished < 8:
                number += 1
                prompt = tuple((i * number) % 800 + 5 for i in range(30))
                engine.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
            engine.step()
        return (engine.snapshot().counters.tokens - before) / (time.perf_counter() - begin)

    run(_WARM)
    print(run(_SECONDS))


if __name__ == "__main__":
    main()
