"""Cost and gain of a grammar: constrained verified decoding and autoregressive, with the grammar and without.

    python -m benchmarks.decode.structured_outputs [--models tiny "tiny as 25m" 25m] [--batches 1 8 32] [--rounds 5]
        [--no-large-vocabulary] [--sampling qwen3]

The ways of decoding the same prompts stand side by side in one process, on engines of their own, and run a few
milliseconds each in turns; each round has other prompts, so that history never has the text of another way or round.
The first sequences are cut, so that rows end at different times as in a job. A ratio is taken within a round, the
median over rounds is shown; the first round warms up. ``tiny`` extracts JSON from its held-out prompts; "tiny as 25m"
is the same model with zeros added to its weights, so that they cost as much as 25 million parameters
(:mod:`benchmarks.decode.widened`); "25m" has random weights and fills a schema of long keys, so its masks propose
nothing that is accepted, and the whole gain is from forced tokens. The accuracy of ``tiny`` is the share of rows whose
fields are right. Three of the ways have fewer sources of drafts (the grammar is one in all of them): the fastest of
these is the least gain expected of all sources together.

The last tables give the time to compute which of 151,936 tokens are allowed, and the speed of a model that has them.
The vocabulary is a byte-level BPE that is trained here on the sources of the installed packages.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import SAMPLING, positive, table, write_result
from benchmarks.decode.fewer_sources import NO_MASKS
from benchmarks.decode.random_model import SHAPES, random_decoder
from benchmarks.decode.turns import Passage, first_lengths, take_turns
from benchmarks.decode.widened import widened
from wedlm_core import EngineConfig, Generation, Request, SamplingParams, StructuredOutputs
from wedlm_core.engine import Engine
from wedlm_core.engine.constrained.grammar_masks import GrammarMasks
from wedlm_core.engine.constrained.matching import Constraint, Proposals
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.fallback import Optimisations
from wedlm_core.grammar import GrammarCompiler
from wedlm_core.model import Decoder
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.statistics import DraftSource
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.training.corpus import distinct
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
FEWER = (
    "verified, constrained, no history",
    "verified, constrained, no masks",
    "verified, constrained, neither",
)
"""Ways with fewer sources of drafts."""
WAYS = ("verified, constrained", "autoregressive", "autoregressive, constrained", *FEWER)
_VOCABULARY = 151_936
_FEWEST_ROWS = 128  # of a round
_MORE_ROWS = {"tiny": 8}  # times as many for a model that decodes these within a few tenths of a second
_SEVERAL = 4  # times as many of these again where several sequences run: else the beginning decides the cost of a job
_MOST, _MOST_TOKENS = 32, 160  # sequences at once, and tokens of each
_SUBJECTS = ("tiny", "tiny as 25m", "25m")


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


def engine_of(way: str, model: Decoder, tokenizer: Tokenizer, *, max_model_len: int | None = None) -> Engine:
    """An engine with the sources of drafts that a way has; it may take the weights over."""
    history = way not in (FEWER[0], FEWER[2])
    config = EngineConfig(
        max_num_seqs=_MOST, max_model_len=max_model_len, history_drafts="auto" if history else False
    )  # fmt: skip
    constants = NO_MASKS if way in FEWER[1:] else CONSTANTS
    return Engine(model, tokenizer, config, keep_weights=False, constants=constants)


def tiny(prompts: int, shape: str | None = None) -> Subject:
    """The shipped model and its held-out extraction; with a shape, at the cost of a model of that."""
    folder = resolve("tiny")
    tokenizer = Tokenizer.load(folder)
    problems = distinct("extraction", "test", prompts)
    ids = [
        tuple(tokenizer.apply_chat_template([{"role": "user", "content": p.prompt}], True, tokenize=True))
        for p in problems
    ]
    model = load_model(folder)
    models = {way: load_model(folder) if shape is None else widened(model, SHAPES[shape]) for way in WAYS}
    engines = {way: engine_of(way, one, tokenizer) for way, one in models.items()}
    return Subject(engines=engines, prompts=ids, answers=[p.answer for p in problems], schema=PERSON, tokens=24)


def random_25m(prompts: int) -> Subject:
    """25 million random weights, the tiny model's vocabulary."""
    tokenizer = Tokenizer.load(resolve("tiny"))
    config = replace(SHAPES["25m"], vocab_size=1024, eos_token_ids=tokenizer.eos_token_ids)

    def engine(way: str) -> Engine:
        model = random_decoder(config, device="cpu", dtype=torch.float32, max_positions=1024)
        return engine_of(way, model, tokenizer, max_model_len=512)

    engines = {way: engine(way) for way in WAYS}
    ids = np.random.default_rng(0).integers(10, 910, (prompts, 32))
    return Subject(engines=engines, prompts=list(map(tuple, ids.tolist())), answers=(), schema=LONG_KEYS, tokens=112)


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
    fewer = min(FEWER, key=lambda way: statistics.median(one[way].seconds_per_token for one in found))
    lines: list[tuple[object, ...]] = []
    for way in WAYS:
        seconds = [one[way].seconds_per_token for one in found]
        done = [generation for one in found for generation in one[way].done]
        forwards = sum(one.stats.decode_forwards for one in done)
        ratios = [
            statistics.median(one[other].seconds_per_token / one[way].seconds_per_token for one in found)
            for other in (WAYS[1], WAYS[2], fewer)
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
    makers = tiny, functools.partial(tiny, shape="25m"), random_25m
    subjects: Mapping[str, Callable[[int], Subject]] = dict(zip(_SUBJECTS, makers, strict=True))
    for name in models:
        for batch in batches:
            prompts = (rounds + 1) * rows_of_round(name, batch)
            subject = replace(subjects[name](prompts), sampling=sampling)
            lines += race(name, subject, batch, rounds, itertools.count())
    return lines


def large_tokenizer(megabytes: int = 40) -> str:
    """A byte-level BPE of :data:`_VOCABULARY` tokens, trained on the sources of installed packages."""
    from tokenizers import Tokenizer as Plain
    from tokenizers import decoders, models, pre_tokenizers, trainers

    def texts() -> Iterator[str]:
        left = megabytes << 20
        for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
            text = path.read_text("utf-8", "ignore")
            left -= len(text)
            if left < 0:
                return
            yield text

    plain = Plain(models.BPE())
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY - 8, special_tokens=["<|end|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  max_token_length=48)  # fmt: skip
    plain.train_from_iterator(texts(), trainer)
    return plain.to_str()


def mask_times(tokenizer: str, threads: int) -> list[tuple[object, ...]]:
    """Milliseconds to compute the allowed tokens of 1 to 32 sequences, a few drafts each."""
    from llguidance import LLExecutor
    from tokenizers import Tokenizer as Plain

    compiler, plain = GrammarCompiler(tokenizer, _VOCABULARY, (0,), origins=threads), Plain.from_str(tokenizer)
    text = '{"name": "Robert", "age": 31, "city": "Rome", "likes": "apples and figs"}'
    ids = plain.encode(text).ids
    lines: list[tuple[object, ...]] = []
    for name, wanted in (("person", StructuredOutputs(json=dict(PERSON))),
                         ("any JSON", StructuredOutputs(json_object=True))):  # fmt: skip
        begin = time.perf_counter()
        grammar = compiler.compile(wanted)
        compiled = time.perf_counter() - begin
        for sequences in (1, 8, 32):
            constraints = [Constraint(grammar) for _ in range(sequences)]
            for number, one in enumerate(constraints):
                place = number % (len(ids) - 4)
                assert one.accept(ids[:place]) is None
                one.draft(Proposals(tokens=ids[place:], most=4, source=DraftSource.MASK), most=4)
            executor, seconds, states = LLExecutor(threads), [], 0
            for _ in range(30):
                pending = GrammarMasks(
                    slots=sequences, vocab_size=_VOCABULARY, eos_token_ids=(0,), guard=Optimisations().grammars
                )
                for number, one in enumerate(constraints):
                    pending.add(number, one, 1)
                begin = time.perf_counter()
                pending.fill(executor)
                seconds.append(time.perf_counter() - begin)
                states = len(pending.line_N)
            middle = 1e3 * float(np.median(seconds))
            lines.append((name, f"{1e3 * compiled:.1f}", sequences, states, f"{middle:.2f}", f"{middle / states:.3f}"))
            print(*lines[-1], sep=" | ", flush=True)
    return lines


def large_engine(text: str, batch: int, *, words_only: bool) -> Engine:
    """The 25M shape with the large vocabulary and random weights.

    Args:
        text: the tokenizer.
        batch: sequences at once.
        words_only: tokens that are no word of up to three letters get a logit of 0, so strings are chosen.
    """
    from tokenizers import Tokenizer as Plain
    from transformers import PreTrainedTokenizerFast

    plain = Plain.from_str(text)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>"), (0,))
    config = replace(SHAPES["25m"], vocab_size=_VOCABULARY, eos_token_ids=(0,), mask_token_id=_VOCABULARY - 1)
    model = random_decoder(config, device="cpu", dtype=torch.float32, max_positions=512)
    if words_only:
        words = [token for piece, token in plain.get_vocab().items() if re.fullmatch("[a-z]{1,3}", piece)]
        kept_V1 = torch.zeros(_VOCABULARY, 1)
        kept_V1[torch.tensor(words)] = 1.0
        with torch.no_grad():
            model.lm_head.weight *= kept_V1
    return Engine(model, tokenizer, EngineConfig(max_num_seqs=batch, max_model_len=256), keep_weights=False)


def large_pass(engine: Engine, params: SamplingParams, batch: int, ids: Iterator[int]) -> tuple[float, float]:
    """Tokens per second of one pass, and the median milliseconds of its steps."""
    for number in range(batch):
        prompt = tuple(10 + (number + 7 * i) % 900 for i in range(32))
        engine.add(Request(request_id=str(next(ids)), prompt_token_ids=prompt, params=params, seed=number))
    tokens, seconds = 0, []
    while engine.has_work():
        begin = time.perf_counter()
        tokens += sum(len(one.token_ids) for one in engine.step())
        seconds.append(time.perf_counter() - begin)
    return tokens / sum(seconds), 1e3 * statistics.median(seconds)


def large_speeds(text: str, rounds: int, sampling: Mapping[str, Any], batch: int = 32) -> list[tuple[object, ...]]:
    """The 25M shape with the large vocabulary: unconstrained, with long keys, with short strings."""
    lines: list[tuple[object, ...]] = []
    for model, words_only in (("random", False), ("short words", True)):
        engine, ids = large_engine(text, batch, words_only=words_only), itertools.count()
        free = SamplingParams(strategy="autoregressive", max_tokens=48, ignore_eos=True, **sampling)
        ways = {"autoregressive": free}
        for name, schema in (("long keys", LONG_KEYS), ("strings of 20 characters", PERSON)):
            wanted = StructuredOutputs(json=dict(schema))
            for strategy in ("autoregressive", "verified"):
                ways[f"{strategy}, {name}"] = SamplingParams(
                    strategy=strategy, max_tokens=48, structured_outputs=wanted, **sampling
                )
        found = [
            {way: large_pass(engine, params, batch, ids) for way, params in ways.items()} for _ in range(rounds + 1)
        ]
        for way in ways:
            speed, step = (statistics.median(one[way][n] for one in found[1:]) for n in (0, 1))
            over = [one[way][0] / one["autoregressive"][0] for one in found[1:]]
            stepping = "" if way.startswith("verified") else f"{step:.1f}"
            lines.append((model, way, f"{speed:.0f}", stepping, f"{statistics.median(over):.3f}",
                          f"{min(over):.3f} to {max(over):.3f}"))  # fmt: skip
            print(*lines[-1], sep=" | ", flush=True)
    return lines


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=_SUBJECTS, default=list(_SUBJECTS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--no-large-vocabulary", action="store_true", help="leave out the table of mask computation")
    parser.add_argument("--sampling", default="own", choices=list(SAMPLING), help="settings of all ways")
    args = parser.parse_args()
    sampling = SAMPLING[args.sampling]
    if max(args.batches) > _MOST:
        raise SystemExit(f"--batches {max(args.batches)}: at most {_MOST} sequences run at once. Give fewer")
    lines = races(args.models, args.batches, args.rounds, sampling)
    header = ("model", "sequences", "way", "tokens/s", "over rounds", "tokens per forward", "rows per token",
              "share forced", "over autoregressive", "over constrained autoregressive",
              "over the best of fewer sources", "right")  # fmt: skip
    body = table(header, lines)
    if not args.no_large_vocabulary:
        text = large_tokenizer()
        masks = mask_times(text, threads=2)
        speeds = large_speeds(text, args.rounds, sampling)
        body += (
            f"\n\nAllowed tokens of a vocabulary of {_VOCABULARY}, computed by two threads:\n\n"
            + table(("grammar", "compiled in, ms", "sequences", "states", "ms", "ms per state"), masks)
            + "\n\nThe 25M shape with that vocabulary, 32 sequences of 48 tokens. Random weights choose tokens that "
            "a grammar seldom allows; *short words* choose words of up to three letters, as strings allow.\n\n"
            + table(("model", "way", "tokens/s", "ms per step", "over autoregressive", "over rounds"), speeds)
        )
    command = f"python -m benchmarks.decode.structured_outputs {' '.join(sys.argv[1:])}".rstrip()
    name = "structured-outputs" if args.sampling == "own" else f"structured-outputs-{args.sampling}"
    write_result(name, "Structured outputs", command, body)


if __name__ == "__main__":
    main()
