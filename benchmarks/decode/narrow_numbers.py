"""What narrow weights bring on a CPU: milliseconds of a decode step, memory, and the time to build an engine.

    python -m benchmarks.decode.narrow_numbers [--shapes 25m 0.6b] [--batches 1 8 32] [--threads 2] [--rounds 5]

Autoregressive decoding of random weights: the same work in every engine, whatever it chooses. The engines stand side by
side in one process, and run in turns. A figure is the median over rounds of a round's median step; the ratio is taken
within a round, so that a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.random_model import random_decoder
from wedlm_core import EngineConfig, ModelConfig, Request, SamplingParams, Strategy
from wedlm_core.config import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.quantised import quantise
from wedlm_core.model.shapes import WEDLM_8B
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

__all__ = ["main"]

SHAPES: Mapping[str, ModelConfig] = {
    "25m": replace(WEDLM_8B, vocab_size=1024, hidden_size=384, intermediate_size=1792, num_hidden_layers=10,
                   num_attention_heads=6, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
                   mask_token_id=3, eos_token_ids=(2,), pad_token_id=0),
    "0.6b": replace(WEDLM_8B, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                    num_key_value_heads=8, tie_word_embeddings=True),
}  # fmt: skip
"""``0.6b`` is the shape of Qwen3-0.6B."""
NUMBERS = ("float32", "bfloat16", "int8")
_CONTEXT, _STEPS = 64, 24


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine, the seconds to pack or round the weights and build it, and the bytes of its weights."""

    engine: Engine
    seconds: float
    megabytes: float


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def _subject(config: ModelConfig, numbers: str, tokenizer: Tokenizer) -> Subject:
    gc.collect()
    before = _resident()
    dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
    model = random_decoder(config, device="cpu", dtype=dtype, max_positions=1024)
    begin = time.perf_counter()
    quantise(model, "int8" if numbers == "int8" else "auto")
    settings = EngineConfig(
        weight_dtype="int8" if numbers == "int8" else "auto", max_num_seqs=32, max_model_len=512, num_pages=96,
        step_cost=StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16),
    )  # fmt: skip
    engine = Engine(model, tokenizer, settings, keep_weights=False)
    seconds = time.perf_counter() - begin
    del model
    gc.collect()
    return Subject(engine=engine, seconds=seconds, megabytes=_resident() - before)


def _step(engine: Engine, batch: int, ids: Iterator[int]) -> float:
    """Median milliseconds of a step with ``batch`` sequences behind :data:`_CONTEXT` tokens and more."""
    params = SamplingParams(max_tokens=_STEPS, ignore_eos=True, strategy=Strategy.AUTOREGRESSIVE)
    for _ in range(batch):
        number = next(ids)
        prompt = tuple(10 + (number + 7 * i) % 900 for i in range(_CONTEXT))
        engine.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
    engine.step()
    seconds = []
    while engine.has_work():
        begin = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds[2:])


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer, ids = Tokenizer.load(resolve("tiny")), iter(range(10**9))
    steps, builds = [], []
    for shape in args.shapes:
        subjects = {numbers: _subject(SHAPES[shape], numbers, tokenizer) for numbers in NUMBERS}
        builds += [(shape, name, f"{s.seconds:.1f}", f"{s.megabytes:.0f}") for name, s in subjects.items()]
        for batch in args.batches:
            rounds = [{n: _step(s.engine, batch, ids) for n, s in subjects.items()} for _ in range(args.rounds)]
            for numbers in NUMBERS:
                own = [one[numbers] for one in rounds]
                gain = statistics.median(one["float32"] / one[numbers] for one in rounds)
                middle = statistics.median(own)
                steps.append((shape, batch, numbers, f"{middle:.2f}", f"{min(own):.2f} to {max(own):.2f}",
                              f"{1e3 * batch / middle:.0f}", f"{gain:.2f}"))  # fmt: skip
                print(*steps[-1], sep=" | ", flush=True)
        del subjects
        gc.collect()
    header = ("shape", "sequences", "numbers", "step, ms", "over rounds, ms", "tokens/s", "times as fast as float32")
    body = (
        f"Autoregressive, greedy, {_CONTEXT} tokens of prompt and {_STEPS} generated, random weights.\n\n"
        + table(header, steps)
        + "\n\nSeconds to round or pack the weights and build the engine, without drawing them; the memory that the "
        "process holds more afterwards (weights once, embedding, KV pool of 96 pages):\n\n"
        + table(("shape", "numbers", "seconds", "MB"), builds)
    )
    options = f"--threads {args.threads} --rounds {args.rounds}"
    write_result("narrow-numbers", "Narrow weights on a CPU",
                 f"python -m benchmarks.decode.narrow_numbers {options}", body, threads=args.threads)  # fmt: skip


if __name__ == "__main__":
    main()
