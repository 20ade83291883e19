"""The quality loss of 8-bit weights and KV: tokens and answers of the tiny model, compared with float32.

    python -m benchmarks.decode.quantised_quality [--per-family 40] [--variants kv-fp8 ...] [--threads 1]

Greedy, one token per forward, on held-out problems. A sequence is compared up to and including its first difference,
so that all compared tokens have equal texts before them: the share of equal tokens is per decision. The tokens before
the first difference and the correct answers show the consequences. Nothing is timed: except for rounding, the figures
are the same on any machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchmarks.common import table, write_result
from benchmarks.decode.near_ties import compare
from benchmarks.decode.workloads import prompts_of
from pipeline.commands.agreement import wilson
from wedlm_core import LLM, EngineConfig, Generation, SamplingParams, Strategy
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
    "kv-fp8": Variant(settings={"kv_cache_dtype": "fp8_e4m3"}),
    "kv-fp8-scaled": Variant(settings={"kv_cache_dtype": "fp8_e4m3"}, prepare=_calibrate),
    "bfloat16-kv-fp8": Variant(dtype="bfloat16", settings={"kv_cache_dtype": "fp8_e4m3"}),
    "int8": Variant(settings={"weight_dtype": "int8"}),
    "int8, wide head": Variant(settings={"weight_dtype": "int8", "quantised_head": False}),
    "weights-fp8": Variant(settings={"weight_dtype": "fp8_e4m3"}),
    "int8-kv-fp8": Variant(settings={"weight_dtype": "int8", "kv_cache_dtype": "fp8_e4m3"}),
}


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-family", type=int, default=40, help="problems of each family of the test split")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    problems = held_out("test", args.per_family)
    plain = _run("float32", problems)
    rows = [_row("float32", plain, plain, problems)]
    for name in args.variants:
        if name != "float32":
            rows.append(_row(name, plain, _run(name, problems), problems))
        print(*rows[-1], sep=" | ", flush=True)
    header = ("numbers", "equal tokens (95%)", "tokens compared", "tokens before the first difference",
              "prompts answered alike", "right answers")  # fmt: skip
    body = f"{len(problems)} held-out problems ({args.per_family} of each family), greedy.\n\n{table(header, rows)}\n\n"
    body += (
        "Scales of `kv-fp8` are 1; those of `kv-fp8-scaled` put the largest key and value of each layer, over "
        "problems of the validation split, at the largest number that 8 bits hold. A token is compared while the text "
        "before it is the same, up to and including the first difference."
    )
    write_result("quantised-quality", "What narrow numbers cost in quality",
                 f"python -m benchmarks.decode.quantised_quality --per-family {args.per_family}", body,
                 threads=args.threads)  # fmt: skip


def _run(name: str, problems: Sequence[corpus.Problem]) -> list[Generation]:
    variant = VARIANTS[name]
    config = EngineConfig(max_num_seqs=64, max_model_len=1024, **variant.settings)  # type: ignore[arg-type]
    llm = LLM("tiny", config=config, dtype=variant.dtype, device="cpu")
    if variant.prepare is not None:
        variant.prepare(llm, held_out("validation", 4))
    return _answers(llm, problems)


def _answers(llm: LLM, problems: Sequence[corpus.Problem]) -> list[Generation]:
    params = SamplingParams(max_tokens=_MAX_TOKENS, strategy=Strategy.AUTOREGRESSIVE)
    return llm.generate(prompts_of(llm, problems), params)


def _row(
    name: str, plain: Sequence[Generation], found: Sequence[Generation], problems: Sequence[corpus.Problem]
) -> tuple[str, ...]:
    texts = [one.token_ids for one in plain]
    difference = compare(texts, [one.token_ids for one in found])
    equal = wilson(1 - difference.differ / difference.tokens, difference.tokens)
    kept = (difference.tokens - difference.differ) / sum(map(len, texts))
    right = sum(corpus.check(problem, one.text) for problem, one in zip(problems, found, strict=True))
    return (
        name,
        f"{equal.estimate:.3%} ({equal.low:.3%}-{equal.high:.3%})",
        str(difference.tokens),
        f"{kept:.1%}",
        f"{difference.sequences - difference.differ} of {difference.sequences}",
        f"{right / len(problems):.1%}",
    )


if __name__ == "__main__":
    main()
