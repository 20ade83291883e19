"""What narrow weights bring on a CPU: milliseconds of a decode step, memory, and the time to build an engine.

    python -m benchmarks.decode.narrow_numbers [--shapes 25m 0.6b] [--batches 1 8 32] [--threads 2] [--rounds 5]
        [--kv] [--context 64]

With ``--kv`` the engines differ in the numbers of keys and values, behind 1,500 tokens if no other context is given.

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
from typing import Literal

import torch

from benchmarks.common import table, write_result
from benchmarks.decode import random_model
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
    "0.6b": random_model.SHAPES["0.6b"],
    "1.7b": random_model.SHAPES["1.7b"],
}  # fmt: skip
_CONTEXT, _KV_CONTEXT, _STEPS, _SEQUENCES, _PAGE = 64, 1500, 24, 32, 64


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What an engine computes with, and the name of the engine that it is compared with."""

    dtype: torch.dtype = torch.float32
    weight_dtype: Literal["auto", "int8"] = "auto"
    kv: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    base: str = "float32"


WEIGHTS: Mapping[str, Numbers] = {
    "float32": Numbers(),
    "bfloat16": Numbers(dtype=torch.bfloat16),
    "int8": Numbers(weight_dtype="int8"),
}
KV: Mapping[str, Numbers] = {
    "float32": Numbers(),
    "float32, KV bfloat16": Numbers(kv="bfloat16"),
    "float32, KV int8": Numbers(kv="int8"),
    "bfloat16, KV float32": Numbers(dtype=torch.bfloat16, kv="float32", base="bfloat16, KV float32"),
    "bfloat16": Numbers(dtype=torch.bfloat16, base="bfloat16, KV float32"),
    "int8, KV float32": Numbers(weight_dtype="int8", kv="float32", base="int8, KV float32"),
    "int8": Numbers(weight_dtype="int8", base="int8, KV float32"),
    "int8, KV int8": Numbers(weight_dtype="int8", kv="int8", base="int8, KV float32"),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine, the seconds to pack or round the weights and build it, and the bytes of its weights."""

    engine: Engine
    seconds: float
    megabytes: float


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def _subject(config: ModelConfig, numbers: Numbers, context: int, tokenizer: Tokenizer) -> Subject:
    gc.collect()
    before, reach = _resident(), max(512, context + 4 * _STEPS)
    model = random_decoder(config, device="cpu", dtype=numbers.dtype, max_positions=2 * reach)
    begin = time.perf_counter()
    quantise(model, numbers.weight_dtype)
    settings = EngineConfig(
        weight_dtype=numbers.weight_dtype, kv_cache_dtype=numbers.kv, max_num_seqs=_SEQUENCES, max_model_len=reach,
        num_pages=_SEQUENCES * -(-(context + 2 * _PAGE) // _PAGE), page_size=_PAGE,
        step_cost=StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16),
    )  # fmt: skip
    engine = Engine(model, tokenizer, settings, keep_weights=False)
    seconds = time.perf_counter() - begin
    del model
    gc.collect()
    return Subject(engine=engine, seconds=seconds, megabytes=_resident() - before)


def _step(engine: Engine, batch: int, context: int, ids: Iterator[int], steps: int = _STEPS) -> float:
    """Median milliseconds of a step with ``batch`` sequences behind ``context`` tokens and more.

    Prompts of a call are different and those of all calls the same, so that only the first one computes them: behind
    it the pool's pages are found again, and all sequences decode from the second step on.
    """
    params = SamplingParams(max_tokens=steps, ignore_eos=True, strategy=Strategy.AUTOREGRESSIVE)
    for number in range(batch):
        prompt = tuple(10 + (31 * number + 7 * i + i // 900) % 900 for i in range(context))
        engine.add(Request(request_id=str(next(ids)), prompt_token_ids=prompt, params=params, seed=number))
    engine.step()
    seconds = []
    while engine.has_work():
        begin = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds[2:] or [0.0])


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["25m", "0.6b"], choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv", action="store_true", help="compare the numbers of keys and values")
    parser.add_argument("--context", type=int, help="tokens of prompt")
    args = parser.parse_args()
    kinds, context = KV if args.kv else WEIGHTS, args.context or (_KV_CONTEXT if args.kv else _CONTEXT)
    torch.set_num_threads(args.threads)
    tokenizer, ids = Tokenizer.load(resolve("tiny")), iter(range(10**9))
    steps, builds = [], []
    for shape in args.shapes:
        subjects = {name: _subject(SHAPES[shape], one, context, tokenizer) for name, one in kinds.items()}
        for subject in subjects.values():
            _step(subject.engine, max(args.batches), context, ids, steps=1)
        builds += [(shape, name, f"{s.seconds:.1f}", f"{s.megabytes:.0f}") for name, s in subjects.items()]
        for batch in args.batches:
            rounds = [
                {n: _step(s.engine, batch, context, ids) for n, s in subjects.items()} for _ in range(args.rounds)
            ]
            for numbers, one_kind in kinds.items():
                own = [one[numbers] for one in rounds]
                gain = statistics.median(one[one_kind.base] / one[numbers] for one in rounds)
                middle = statistics.median(own)
                attention = subjects[numbers].engine._runner.backend.name
                steps.append((shape, batch, numbers, attention, f"{middle:.2f}", f"{min(own):.2f} to {max(own):.2f}",
                              f"{1e3 * batch / middle:.0f}", f"{gain:.2f}"))  # fmt: skip
                print(*steps[-1], sep=" | ", flush=True)
        del subjects
        gc.collect()
    base = "times as fast as with KV in float32" if args.kv else "times as fast as float32"
    header = ("shape", "sequences", "numbers", "attention", "step, ms", "over rounds, ms", "tokens/s", base)
    body = (
        f"Autoregressive, greedy, {context:,} tokens of prompt and {_STEPS} generated, random weights.\n\n"
        + table(header, steps)
        + "\n\nSeconds to round or pack the weights and build the engine, without drawing them; the memory that the "
        "process holds more afterwards (weights once, and the embedding; the KV pool takes memory as it is used):\n\n"
        + table(("shape", "numbers", "seconds", "MB"), builds)
    )
    options = f"--shapes {' '.join(args.shapes)} --batches {' '.join(map(str, args.batches))} "
    options += f"--threads {args.threads} --rounds {args.rounds}" + " --kv" * args.kv
    options += f" --context {context}" * (args.context is not None)
    name, title = ("narrow-kv", "Narrow keys and values") if args.kv else ("narrow-numbers", "Narrow weights")
    write_result(name, f"{title} on a CPU", f"python -m benchmarks.decode.narrow_numbers {options}", body,
                 threads=args.threads)  # fmt: skip


if __name__ == "__main__":
    main()
