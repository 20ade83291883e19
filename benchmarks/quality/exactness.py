"""Are outputs those of autoregressive decoding alone? ``python -m benchmarks.quality.exactness [--shapes tiny 25m]``.

Whole outputs are compared, as arXiv 2609.15504 does: prompts of all families of toy problems (random tokens for
models with random weights), greedy and sampled in turns. Each output is decoded autoregressively by itself; then all of
them are decoded so many at a time, autoregressively and by ``verified``, whose forwards have several rows a sequence
(1 row against k + 1 rows, as in vLLM's issue 54506). An output is equal if all tokens are, and if all of its
log-probabilities are, to the last bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from benchmarks.common import positive, table, write_result
from benchmarks.decode.random_model import SHAPES, random_decoder
from testing.toy import FAMILIES, distinct
from wedlm_core import EngineConfig, Generation, Request, SamplingParams, Strategy
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

_NUMBERS = ("int8", "float32", "bfloat16")
_TEMPERATURES = (0.0, 0.8)


def engine_of(shape: str, numbers: str, device: str, most: int, length: int) -> Engine:
    """An engine for ``most`` sequences at once whose rows do not depend on their batch, as far as it can promise it.

    Raises:
        ConfigError: no attention of this device promises it.
    """
    dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
    weights: Any = "int8" if numbers == "int8" else "auto"
    if shape == "tiny":
        model = load_model(resolve("tiny"), device=device, dtype=dtype)
    else:
        model = random_decoder(SHAPES[shape], device=device, dtype=dtype, max_positions=length)
    config = EngineConfig(weight_dtype=weights, batch_invariant=True, max_num_seqs=most, max_model_len=length)
    return Engine(model, Tokenizer.load(resolve("tiny")), config)


def prompts_of(shape: str, count: int) -> list[tuple[int, ...]]:
    """Prompts of held-out toy problems, as many of each family; random tokens for random weights."""
    if shape != "tiny":
        return [tuple(ids) for ids in np.random.default_rng(0).integers(10, 910, (count, 24)).tolist()]
    tokenizer = Tokenizer.load(resolve("tiny"))
    each = -(-count // len(FAMILIES))
    problems = chain.from_iterable(zip(*(distinct(family, "test", each) for family in FAMILIES), strict=True))
    chats = ([{"role": "user", "content": problem.prompt}] for problem in islice(problems, count))
    return [tuple(tokenizer.apply_chat_template(chat, True, tokenize=True)) for chat in chats]


def decoded(
    engine: Engine, prompts: Sequence[tuple[int, ...]], strategy: Strategy, at_once: int, new: int, names: Iterator[int]
) -> list[Generation]:
    """The outputs in the order of the prompts."""
    requests = [
        Request(
            request_id=str(next(names)), prompt_token_ids=prompt, seed=number,
            params=SamplingParams(
                max_tokens=new, strategy=strategy, temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
                logprobs=True,
            ),
        )
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    done, waiting = dict[str, Generation](), iter(requests)
    for request in islice(waiting, at_once):
        engine.add(request)
    while engine.has_work():
        for one in engine.step():
            done[one.request_id] = one
            if (following := next(waiting, None)) is not None:
                engine.add(following)
    return [done[request.request_id] for request in requests]


def main(argv: Sequence[str] | None = None) -> None:
    """Decode, compare and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["tiny", "25m", "0.6b"], choices=["tiny", *SHAPES])
    parser.add_argument("--numbers", nargs="+", default=list(_NUMBERS), choices=_NUMBERS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 64, 256])
    parser.add_argument("--prompts", type=positive, default=256)
    parser.add_argument("--new", type=positive, default=48, help="tokens of an output at most")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    rows = [row for shape in args.shapes for numbers in args.numbers for row in _compared(shape, numbers, args)]
    header = ("model", "numbers", "strategy", "at once", "equal tokens", "equal log-probabilities", "tokens a forward")
    words = " ".join(["python -m benchmarks.quality.exactness", *(sys.argv[1:] if argv is None else argv)])
    body = f"{args.prompts} prompts, at most {args.new} tokens, half of the outputs greedy.\n\n{table(header, rows)}"
    name = "-".join(["exactness", *args.shapes])
    write_result(name, "Outputs equal to autoregressive decoding alone", words, body)


def _compared(shape: str, numbers: str, args: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    prompts, names = prompts_of(shape, args.prompts), iter(range(10**9))
    length = max(map(len, prompts)) + args.new + 64
    engine = engine_of(shape, numbers, args.device, max(args.batches), length)
    alone = decoded(engine, prompts, Strategy.AUTOREGRESSIVE, 1, args.new, names)
    for strategy in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED):
        for at_once in args.batches:
            found = decoded(engine, prompts, strategy, at_once, args.new, names)
            pairs = list(zip(alone, found, strict=True))
            tokens = sum(one.token_ids == other.token_ids for one, other in pairs)
            bits = sum(one.logprobs == other.logprobs for one, other in pairs)
            forwards = sum(one.stats.decode_forwards for one in found)
            rate = sum(one.stats.generated_tokens for one in found) / max(1, forwards)
            row = shape, numbers, strategy, at_once, *(f"{n} of {len(pairs)}" for n in (tokens, bits)), f"{rate:.2f}"
            print(*row, sep=" | ", flush=True)
            yield row


if __name__ == "__main__":
    main()
