"""Measure the cost of sampling settings at a real vocabulary: the median step over a plain one.

    python -m benchmarks.decode.settings [--shape 0.6b] [--batches 1 8 32 64] [--strategies autoregressive verified]
        [--settings ...] [--rounds 3] [--steps 8] [--threads 2] [--device cpu | cuda]

One engine with random int8 weights decodes every setting in turns with plain temperature, some steps each, so that a
busy moment of the machine meets both. ``verified`` has windows of a fixed size, so that both forward as many rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common import positive, table, write_result
from benchmarks.decode.random_model import SHAPES, random_decoder
from wedlm_core import EngineConfig, Request, SamplingParams, Strategy
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

_PROMPT, _LONGEST, _WINDOW = 64, 512, 8  # tokens of a prompt and of a sequence; masks of a window of ``verified``
_PLAIN = "temperature"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias, 5 tokens": {"logit_bias": dict.fromkeys(range(100, 105), 1.0)},
    "logit_bias, 300 tokens": {"logit_bias": dict.fromkeys(range(100, 400), 1.0)},
    "one bad word": {"bad_words": ("e",)},
    "min_tokens": {"min_tokens": 200, "ignore_eos": False, "stop_token_ids": (7,)},
    "logprobs 5": {"logprobs": 5},
    "logprobs 20": {"logprobs": 20},
    "suppress_tokens, 50": {"suppress_tokens": tuple(range(50))},
    "100 stop strings": {"stop": tuple(f"the end, number {i}" for i in range(100))},
    "10 stop_token_ids": {"stop_token_ids": tuple(range(950, 960))},
    "Qwen3, thinking": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "Qwen3, not thinking": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5},
    "Llama 3": {"temperature": 0.6, "top_p": 0.9},
    "OpenAI's defaults": {"temperature": 1.0, "top_p": 1.0},
    "JSON schema with log-probabilities": {
        "structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 200}},
        "logprobs": 5, "ignore_eos": False,
    },
    "best of 4": {"n": 4, "logprobs": True},
    "all together": {
        "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "presence_penalty": 0.5,
        "frequency_penalty": 0.5, "logit_bias": dict.fromkeys(range(100, 105), 1.0), "bad_words": ("e",),
        "logprobs": 5,
    },
}  # fmt: skip


class Subject:
    """An engine that decodes ``batch`` sequences of one setting at a time."""

    def __init__(self, shape: str, device: str, strategy: Strategy) -> None:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        tokenizer = Tokenizer.load(resolve("tiny"))
        decoder = replace(SHAPES[shape], eos_token_ids=tokenizer.eos_token_ids)
        model = random_decoder(decoder, device=device, dtype=dtype, max_positions=1024)
        config = EngineConfig(
            weight_dtype="int8", max_num_seqs=64, max_model_len=_LONGEST, prefix_caching=False,
            num_pages=64 * _LONGEST // EngineConfig.page_size,
        )  # fmt: skip
        self._engine = Engine(model, tokenizer, config)
        self.strategy, self._numbers = strategy, iter(range(10**9))

    def steps(self, batch: int, count: int, setting: Mapping[str, Any]) -> list[float]:
        """Seconds of ``count`` steps after the prompts and two more steps."""
        given = {"temperature": 0.8, "max_tokens": _LONGEST - _PROMPT, "ignore_eos": True, **setting}
        window: dict[str, Any] = {"window_size": _WINDOW} if self.strategy == Strategy.VERIFIED else {}
        params = SamplingParams(strategy=self.strategy, **given, **window)
        numbers = [next(self._numbers) for _ in range(batch)]
        for n in numbers:
            prompt = tuple(10 + (7 * i + 13 * (n // params.n)) % 900 for i in range(_PROMPT))
            self._engine.add(Request(request_id=str(n), prompt_token_ids=prompt, params=params, seed=n))
        while not all(self._engine.committed(str(n)) for n in numbers):  # prompts may take several forwards
            self._engine.step()
        seconds = list(self._timed(count + 2))[2:]
        for n in numbers:
            self._engine.abort(str(n))
        return seconds

    def _timed(self, count: int) -> Iterator[float]:
        for _ in range(count):
            begin = time.perf_counter()
            self._engine.step()
            yield time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6b", choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32, 64])
    parser.add_argument("--strategies", nargs="+", default=["autoregressive", "verified"])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=8)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rows = []
    for strategy in args.strategies:
        subject = Subject(args.shape, args.device, Strategy(strategy))
        for batch in args.batches:
            subject.steps(batch, 1, {})
            rows += [(strategy, batch, *_line(name, subject, batch, args)) for name in args.settings]
    header = ("strategy", "sequences", "setting", "ms a step", "over plain temperature")
    command = " ".join(["python -m benchmarks.decode.settings", *(sys.argv[1:] if argv is None else argv)])
    # A run of other strategies or batches on the same day has another name, so none replaces another.
    name = "-".join(["settings-sampling", *args.strategies, *map(str, args.batches)])
    write_result(name, "Sampling settings at a vocabulary of 151,936", command, table(header, rows),
                 threads=args.threads)  # fmt: skip


def _line(name: str, subject: Subject, batch: int, args: argparse.Namespace) -> tuple[object, ...]:
    """A setting's median step, and the median of its ratios to the plain steps just before."""
    own, ratios = list[float](), list[float]()
    for _ in range(args.rounds):
        before = statistics.median(subject.steps(batch, args.steps, {}))
        own.append(statistics.median(subject.steps(batch, args.steps, SETTINGS[name])))
        ratios.append(own[-1] / before)
    row = name, f"{1000 * statistics.median(own):.1f}", f"{statistics.median(ratios):.2f}"
    print(batch, *row, sep=" | ", flush=True)
    return row


if __name__ == "__main__":
    main()
