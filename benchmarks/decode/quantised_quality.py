"""The quality loss of narrow weights and KV: tokens and answers of models, compared with float32.

    python -m benchmarks.decode.quantised_quality [--models tiny runs/small/model] [--per-family 40] [--variants ...]

Greedy, one token per forward, on held-out problems. A sequence is compared up to and including its first difference,
so that all compared tokens have equal texts before them: the share of equal tokens is per decision. The tokens before
the first difference and the correct answers show the consequences. Perplexity is that of the reference answers under
the next-token head. Nothing is timed: except for rounding, the figures are the same on any machine.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from benchmarks.common import table, write_result
from benchmarks.decode.near_ties import compare
from benchmarks.decode.workloads import prompts_of
from pipeline.commands.agreement import wilson
from wedlm_core import LLM, EngineConfig, Generation, SamplingParams, Strategy
from wedlm_core.model.memory import weight_bytes
from wedlm_core.training import corpus
from wedlm_core.training.evaluation import held_out

__all__ = ["main"]

_MAX_TOKENS = 160
_FP8_LARGEST = torch.finfo(torch.float8_e4m3fn).max

Prepare = Callable[[LLM, Sequence[corpus.Problem]], None]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An engine variant: dtype, settings, and how it is prepared."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    settings: Mapping[str, object] = field(default_factory=dict)
    prepare: Prepare | None = None


def _calibrate(llm: LLM, problems: Sequence[corpus.Problem]) -> None:
    """Set the scales of the 8-bit pool from the largest key and value of each layer, over other problems."""
    pool = llm.engine._runner.pool
    largest = [[0.0, 0.0] for _ in pool.scales]
    write = pool.write

    def watched(layer: int, rows_HT: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        found = (float(k_THD.abs().max()), float(v_THD.abs().max()))
        largest[layer] = [max(*pair) for pair in zip(largest[layer], found, strict=True)]
        write(layer, rows_HT, k_THD, v_THD)

    pool.write = watched  # type: ignore[method-assign, assignment]
    _answers(llm, problems)
    pool.write = write  # type: ignore[method-assign]
    for layer, (key, value) in enumerate(largest):
        pool.set_scales(layer, key / _FP8_LARGEST, value / _FP8_LARGEST)


VARIANTS: Mapping[str, Variant] = {
    "float32": Variant(),
    "bfloat16": Variant(dtype="bfloat16"),
    "int8": Variant(settings={"weight_dtype": "int8"}),
    "int8, smoothed": Variant(settings={"weight_dtype": "int8", "smoothing": "sample"}),
    "int8, wide head": Variant(settings={"weight_dtype": "int8", "quantised_head": False}),
    "int4": Variant(settings={"weight_dtype": "int4"}),
    "int4, smoothed": Variant(settings={"weight_dtype": "int4", "smoothing": "sample"}),
    "weights-fp8": Variant(settings={"weight_dtype": "fp8_e4m3"}),
    "kv-bfloat16": Variant(settings={"kv_cache_dtype": "bfloat16"}),
    "kv-fp8": Variant(settings={"kv_cache_dtype": "fp8_e4m3"}),
    "kv-fp8-scaled": Variant(settings={"kv_cache_dtype": "fp8_e4m3"}, prepare=_calibrate),
    "bfloat16-kv-fp8": Variant(dtype="bfloat16", settings={"kv_cache_dtype": "fp8_e4m3"}),
    "int8-kv-float32": Variant(settings={"weight_dtype": "int8", "kv_cache_dtype": "float32"}),
    "kv-int8": Variant(settings={"kv_cache_dtype": "int8"}),
    "int8-kv-int8": Variant(settings={"weight_dtype": "int8", "kv_cache_dtype": "int8"}),
    "int8-kv-fp8": Variant(settings={"weight_dtype": "int8", "kv_cache_dtype": "fp8_e4m3"}),
}


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny"], help="the shipped model, or folders")
    parser.add_argument("--per-family", type=int, default=40, help="problems of each family of the test split")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--result", default="quantised-quality", help="name of the file that is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    problems = held_out("test", args.per_family)
    body = f"{len(problems)} held-out problems ({args.per_family} of each family), greedy.\n\n"
    for model in args.models:
        body += _section(model, args.variants, problems)
    body += (
        '`smoothed` is `smoothing="sample"`. Scales of `kv-fp8` are 1; those of `kv-fp8-scaled` put the largest key '
        "and value of each layer, over problems of the validation split, at the largest number that 8 bits hold. "
        "Weights are those that an engine on a CPU holds. A token is compared while the text before it is the same, "
        "up to and including the first difference."
    )
    names = " ".join(args.models)
    command = f"python -m benchmarks.decode.quantised_quality --models {names} --per-family {args.per_family}"
    if args.variants != list(VARIANTS):
        command += f" --variants {' '.join(map(shlex.quote, args.variants))}"
    if args.threads != parser.get_default("threads"):
        command += f" --threads {args.threads}"
    if args.result != parser.get_default("result"):
        command += f" --result {args.result}"
    write_result(args.result, "What narrow numbers cost in quality", command, body, threads=args.threads)


def _section(model: str, variants: Sequence[str], problems: Sequence[corpus.Problem]) -> str:
    """The table of a model."""
    plain = _run(model, "float32", problems)
    rows = [_row("float32", plain, plain, problems)]
    for name in variants:
        if name != "float32":
            rows.append(_row(name, plain, _run(model, name, problems), problems))
        print(*rows[-1], sep=" | ", flush=True)
    header = ("numbers", "weights, MB", "right answers", "perplexity", "equal tokens (95%)", "tokens compared",
              "tokens before the first difference", "prompts answered alike")  # fmt: skip
    return f"## {Path(model).name if model == 'tiny' else plain.described}\n\n{table(header, rows)}\n\n"


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a variant of a model gave: generations, perplexity of the reference answers, megabytes of its weights."""

    generations: Sequence[Generation]
    perplexity: float
    megabytes: float
    described: str


def _run(model: str, name: str, problems: Sequence[corpus.Problem]) -> _Found:
    variant = VARIANTS[name]
    config = EngineConfig(max_num_seqs=64, max_model_len=1024, **variant.settings)  # type: ignore[arg-type]
    llm = LLM(model, config=config, dtype=variant.dtype, device="cpu")
    if variant.prepare is not None:
        variant.prepare(llm, held_out("validation", 4))
    # In the chat template an answer begins at once, behind plain text on a line of its own.
    ends = [("\n" if i % 2 else "") + problem.answer for i, problem in enumerate(problems)]
    scores = llm.score(prompts_of(llm, problems), ends)
    logprob = sum(score.logprob for score in scores) / sum(len(score.logprobs) for score in scores)
    weight_dtype, dtype = variant.settings.get("weight_dtype", "auto"), variant.dtype
    size = weight_bytes(llm.model_config, dtype=dtype, weight_dtype=str(weight_dtype), on_cpu=True,
                        quantised_head=bool(variant.settings.get("quantised_head", True)))  # fmt: skip
    described = repr(llm).partition(": ")[2].partition(",")[0]
    return _Found(generations=_answers(llm, problems), perplexity=math.exp(-logprob), megabytes=size / 1e6,
                  described=described)  # fmt: skip


def _answers(llm: LLM, problems: Sequence[corpus.Problem]) -> list[Generation]:
    params = SamplingParams(max_tokens=_MAX_TOKENS, strategy=Strategy.AUTOREGRESSIVE)
    return llm.generate(prompts_of(llm, problems), params)


def _row(name: str, plain: _Found, found: _Found, problems: Sequence[corpus.Problem]) -> tuple[str, ...]:
    texts = [one.token_ids for one in plain.generations]
    difference = compare(texts, [one.token_ids for one in found.generations])
    equal = wilson(1 - difference.differ / difference.tokens, difference.tokens)
    kept = (difference.tokens - difference.differ) / sum(map(len, texts))
    pairs = zip(problems, found.generations, strict=True)
    right = sum(corpus.check(problem, one.text) for problem, one in pairs)
    return (
        name,
        f"{found.megabytes:.2f}",
        f"{right / len(problems):.1%}",
        f"{found.perplexity:.4f}",
        f"{equal.estimate:.3%} ({equal.low:.3%}-{equal.high:.3%})",
        str(difference.tokens),
        f"{kept:.1%}",
        f"{difference.sequences - difference.differ} of {difference.sequences}",
    )


if __name__ == "__main__":
    main()
