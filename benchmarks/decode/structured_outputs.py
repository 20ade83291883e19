"""Cost and gain of a grammar: constrained verified decoding and autoregressive, with the grammar and without.

    python -m benchmarks.decode.structured_outputs [--models tiny 25m] [--batches 1 8 32] [--rounds 5]
        [--sampling qwen3]

The ways of decoding the same prompts stand side by side in one process, on engines of their own, and run a few
milliseconds each in turns; each round has other prompts, so that history never has the text of another way or round.
The first sequences are cut, so that rows end at different times as in a job. A ratio is taken within a round, the
median over rounds is shown; the first round warms up. ``tiny`` extracts JSON from its held-out prompts; "25m" has
random weights and fills a schema of long keys, so its masks propose nothing that is accepted, and the whole gain is
from forced tokens. The accuracy of ``tiny`` is the share of rows whose
fields are right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from benchmarks.common import SAMPLING, positive, table, write_result
from benchmarks.decode.random_model import SHAPES, random_decoder
from benchmarks.decode.turns import Passage, first_lengths, take_turns
from testing.toy import distinct
from wedlm_core import EngineConfig, Generation, Request, SamplingParams, StructuredOutputs
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason

_TEXT: Mapping[str, Any] = {"type": "string", "maxLength": 20}
PERSON: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": _TEXT, "age": {"type": "integer"}, "city": _TEXT, "likes": _TEXT},
    "required": ["name", "age", "city", "likes"],
    "additionalProperties": False,
}
_COLOUR = {"enum": ["red", "green", "blue"]}
LONG_KEYS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "identifier_of_the_customer": {"type": "integer", "minimum": 1, "maximum": 9999},
        "preferred_colour_of_the_product": _COLOUR,
        "has_agreed_to_the_terms_and_conditions": {"type": "boolean"},
        "quantity_of_ordered_items_in_total": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour_of_the_replacement_product": _COLOUR,
    },
    "required": ["identifier_of_the_customer", "preferred_colour_of_the_product",
                 "has_agreed_to_the_terms_and_conditions", "quantity_of_ordered_items_in_total",
                 "colour_of_the_replacement_product"],
    "additionalProperties": False,
}  # fmt: skip
WAYS = ("verified, constrained", "autoregressive", "autoregressive, constrained")
_FEWEST_ROWS = 128  # of a round
_MORE_ROWS = {"tiny": 8}  # times as many for a model that decodes these within a few tenths of a second
_SEVERAL = 4  # times as many of these again where several sequences run: else the beginning decides the cost of a job
_MOST, _MOST_TOKENS = 32, 160  # sequences at once, and tokens of each


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with prompts, and the schema that its outputs fill.

    Attributes:
        engines: one for each way.
        prompts: different ones.
        answers: to them; empty where nothing is right.
        schema: of the outputs.
        tokens: that an output has, about.
        sampling: settings of all ways.
    """

    engines: Mapping[str, Engine]
    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[str]
    schema: Mapping[str, Any]
    tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)


def tiny(prompts: int) -> Subject:
    """The shipped model and its held-out extraction."""
    folder = resolve("tiny")
    tokenizer = Tokenizer.load(folder)
    problems = distinct("extraction", "test", prompts)
    ids = [
        tuple(tokenizer.apply_chat_template([{"role": "user", "content": p.prompt}], True, tokenize=True))
        for p in problems
    ]
    config = EngineConfig(max_num_seqs=_MOST)
    engines = {way: Engine(load_model(folder), tokenizer, config) for way in WAYS}
    return Subject(engines=engines, prompts=ids, answers=[p.answer for p in problems], schema=PERSON, tokens=24)


def random_25m(prompts: int) -> Subject:
    """25 million random weights, the tiny model's vocabulary."""
    tokenizer = Tokenizer.load(resolve("tiny"))
    config = replace(SHAPES["25m"], vocab_size=1024, eos_token_ids=tokenizer.eos_token_ids)

    def engine() -> Engine:
        model = random_decoder(config, device="cpu", dtype=torch.float32, max_positions=1024)
        return Engine(model, tokenizer, EngineConfig(max_num_seqs=_MOST, max_model_len=512))

    engines = {way: engine() for way in WAYS}
    ids = np.random.default_rng(0).integers(10, 910, (prompts, 32))
    return Subject(engines=engines, prompts=list(map(tuple, ids.tolist())), answers=(), schema=LONG_KEYS, tokens=112)


_SUBJECTS: Mapping[str, Callable[[int], Subject]] = {"tiny": tiny, "25m": random_25m}


def params_of(subject: Subject, way: str, length: int, most: int) -> SamplingParams:
    """One way of decoding a prompt; without the grammar, as many tokens as the output with it has."""
    if way == "autoregressive":
        return SamplingParams(strategy="autoregressive", max_tokens=length, ignore_eos=True, **subject.sampling)
    wanted = StructuredOutputs(json=dict(subject.schema))
    strategy = way.partition(",")[0]
    return SamplingParams(strategy=strategy, max_tokens=most, structured_outputs=wanted, **subject.sampling)


def passage(
    subject: Subject, way: str, numbers: Sequence[int], batch: int, lengths: Mapping[int, int], ids: Iterator[int]
) -> Passage:  # fmt: skip
    """A way through these prompts with ``batch`` sequences at once."""
    most = itertools.chain(first_lengths(batch, subject.tokens), itertools.repeat(_MOST_TOKENS))
    requests = [
        Request(
            request_id=f"{next(ids)}/{number}", prompt_token_ids=subject.prompts[number],
            params=params_of(subject, way, lengths.get(number, 0), own), seed=number,
        )
        for number, own in zip(numbers, most, strict=False)
    ]  # fmt: skip
    return Passage(engine=subject.engines[way], requests=requests, batch=batch)


def run_round(subject: Subject, numbers: Sequence[int], batch: int, ids: Iterator[int]) -> Mapping[str, Passage]:
    """All ways through these prompts, in turns."""
    longest = passage(subject, WAYS[2], numbers, batch, {}, ids)  # says how many tokens there are to decode
    take_turns([longest])
    lengths = {number_of(one): len(one.token_ids) for one in longest.done}
    found = {way: passage(subject, way, numbers, batch, lengths, ids) for way in WAYS}
    take_turns(list(found.values()))
    return found


def number_of(one: Generation) -> int:
    """The prompt of an output."""
    return int(one.request_id.partition("/")[2])


def right(subject: Subject, done: Sequence[Generation]) -> str:
    """The share of outputs whose values are those of the answer; those that are cut are left out."""
    if not subject.answers:
        return "-"

    def fits(one: Generation) -> bool:
        try:
            return json.loads(one.text) == json.loads(subject.answers[number_of(one)])
        except ValueError:
            return False

    whole = [one for one in done if one.finish_reason == FinishReason.STOP]
    return f"{sum(map(fits, whole)) / len(whole):.3f}"


def race(name: str, subject: Subject, batch: int, rounds: int, ids: Iterator[int]) -> list[tuple[object, ...]]:
    """Lines of the table of speeds for one batch."""
    each = rows_of_round(name, batch)
    found = [run_round(subject, range(turn * each, (turn + 1) * each), batch, ids) for turn in range(rounds + 1)][1:]
    lines: list[tuple[object, ...]] = []
    for way in WAYS:
        seconds = [one[way].seconds_per_token for one in found]
        done = [generation for one in found for generation in one[way].done]
        forwards = sum(one.stats.decode_forwards for one in done)
        ratios = [
            statistics.median(one[other].seconds_per_token / one[way].seconds_per_token for one in found)
            for other in (WAYS[1], WAYS[2])
        ]
        tokens = sum(len(one.token_ids) for one in done)
        lines.append((name, batch, way, f"{1 / statistics.median(seconds):.0f}",
                      f"{1 / max(seconds):.0f} to {1 / min(seconds):.0f}", f"{tokens / max(1, forwards):.2f}",
                      f"{sum(one.stats.rows_forwarded for one in done) / tokens:.2f}",
                      f"{sum(one.stats.grammar_drafts_accepted for one in done) / tokens:.2f}",
                      *(f"{ratio:.2f}" for ratio in ratios),
                      right(subject, done) if "constrained" in way else "-"))  # fmt: skip
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def rows_of_round(model: str, batch: int) -> int:
    """Prompts that one round decodes: long enough for times to mean something, and for more than a job's beginning."""
    if model in _MORE_ROWS:
        return _FEWEST_ROWS * _MORE_ROWS[model] * (1 if batch == 1 else _SEVERAL)
    return max(_FEWEST_ROWS, 16 * batch)


def races(
    models: Sequence[str], batches: Sequence[int], rounds: int, sampling: Mapping[str, Any]
) -> list[tuple[object, ...]]:
    """The table of speeds: these models, all batches, fresh engines for each."""
    lines: list[tuple[object, ...]] = []
    for name in models:
        for batch in batches:
            prompts = (rounds + 1) * rows_of_round(name, batch)
            subject = replace(_SUBJECTS[name](prompts), sampling=sampling)
            lines += race(name, subject, batch, rounds, itertools.count())
    return lines


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=_SUBJECTS, default=list(_SUBJECTS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--sampling", default="own", choices=list(SAMPLING), help="settings of all ways")
    args = parser.parse_args()
    sampling = SAMPLING[args.sampling]
    if max(args.batches) > _MOST:
        raise SystemExit(f"--batches {max(args.batches)}: at most {_MOST} sequences run at once. Give fewer")
    lines = races(args.models, args.batches, args.rounds, sampling)
    header = ("model", "sequences", "way", "tokens/s", "over rounds", "tokens per forward", "rows per token",
              "share forced", "over autoregressive", "over constrained autoregressive", "right")  # fmt: skip
    command = f"python -m benchmarks.decode.structured_outputs {' '.join(sys.argv[1:])}".rstrip()
    name = "structured-outputs" if args.sampling == "own" else f"structured-outputs-{args.sampling}"
    write_result(name, "Structured outputs", command, table(header, lines))


if __name__ == "__main__":
    main()
