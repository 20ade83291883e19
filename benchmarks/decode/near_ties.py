"""How often rounding decides a token: differences from batch-1 outputs in engines that are not batch invariant.

    python -m benchmarks.decode.near_ties [--models tiny random-25m] [--per-regime 48] [--threads 1]

Without batch invariance the last bits of a row's logits depend on the rest of the forward. If two tokens are nearly
tied, that decides which one wins. Every shape decodes the same prompts. Each sequence is compared with the one that
was decoded alone, token by token, up to and including the first difference (the texts diverge after it). The default
for float32 on CPU is measured too; its count must be zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.passes import Workload, run_pass
from benchmarks.decode.workloads import MODELS, Subject, open_subject, regime
from pipeline.commands.agreement import wilson
from wedlm_core import LLM, EngineConfig, Strategy
from wedlm_core.training.evaluation import REGIMES

__all__ = ["Difference", "compare", "main"]

_SLOTS = 64


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An engine configuration: dtype and settings."""

    name: str
    dtype: Literal["float32", "bfloat16"]
    config: EngineConfig


def _config(**settings: object) -> EngineConfig:
    return EngineConfig(max_num_seqs=_SLOTS, prefix_caching=False, max_model_len=1024, **settings)  # type: ignore[arg-type]


_VARIANTS = (
    Variant(name="float32, batch invariant (default)", dtype="float32", config=_config()),
    Variant(
        name='float32, batch_invariant=False, attention="sdpa"',
        dtype="float32",
        config=_config(batch_invariant=False, attention="sdpa"),
    ),
    Variant(name="bfloat16", dtype="bfloat16", config=_config()),
)
_SHAPES: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "autoregressive, 8 at once": (8, {"strategy": Strategy.AUTOREGRESSIVE}),
    "autoregressive, 64 at once": (64, {"strategy": Strategy.AUTOREGRESSIVE}),
    "verified W=16, 1 at once": (1, {"strategy": Strategy.VERIFIED, "window_size": 16}),
    "verified W=4, 8 at once": (8, {"strategy": Strategy.VERIFIED, "window_size": 4}),
    "verified auto, 64 at once": (64, {"strategy": Strategy.VERIFIED}),
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Number of compared tokens, of sequences that differ, and of sequences."""

    tokens: int
    differ: int
    sequences: int

    def row(self) -> tuple[str, str, str]:
        """Differences per 100,000 tokens with its 95% interval, tokens, sequences that differ."""
        found = wilson(self.differ / self.tokens, self.tokens)
        rate, low, high = (1e5 * x for x in (found.estimate, found.low, found.high))
        return f"{rate:.1f} ({low:.1f}-{high:.1f})", str(self.tokens), f"{self.differ} of {self.sequences}"


def compare(alone: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]]) -> Difference:
    """Compare sequence by sequence, up to and including the first difference. An earlier end is a difference."""
    tokens = differ = 0
    for a, b in zip(alone, others, strict=True):
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        differ += a != b
        tokens += same + (a != b)
    return Difference(tokens=tokens, differ=differ, sequences=len(alone))


def _pooled(parts: Sequence[Difference]) -> Difference:
    tokens, differ, sequences = (sum(getattr(p, name) for p in parts) for name in ("tokens", "differ", "sequences"))
    return Difference(tokens=tokens, differ=differ, sequences=sequences)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--per-regime", type=int, default=48, help="prompts of each regime")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [row for model in args.models for row in _rows(model, args.per_regime)]
    header = (
        "model",
        "numbers",
        "shape",
        "differences per 10^5 tokens (95%)",
        "tokens compared",
        "prompts that differ",
    )
    body = (
        f"{args.per_regime} prompts of each regime of entropy (`tiny`: greedy, high entropy at temperature 1; "
        "`random-25m`: temperatures 60, 20 and 6). Each shape is held against `autoregressive` one sequence at a time "
        "in the same numbers. A difference is the first one of a sequence.\n\n" + table(header, rows)
    )
    chosen = f"--models {' '.join(args.models)} --per-regime {args.per_regime}"
    command = f"python -m benchmarks.decode.near_ties {chosen}"
    write_result("near-ties", "How often rounding decides a token", command, body, threads=args.threads)


def _rows(model: str, per_regime: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    with open_subject(model) as subject:
        work = _workload(subject, per_regime)
        for variant in _VARIANTS:
            llm = LLM(str(Path(subject.llm.name)), config=variant.config, dtype=variant.dtype, device="cpu")
            alone = _ids(llm, work, 1, {"strategy": Strategy.AUTOREGRESSIVE})
            found = {shape: compare(alone, _ids(llm, work, *how)) for shape, how in _SHAPES.items()}
            found["all of these"] = _pooled(list(found.values()))
            rows += [(model, variant.name, shape, *one.row()) for shape, one in found.items()]
            print(*rows[-1], sep=" | ", flush=True)
    return rows


def _workload(subject: Subject, per_regime: int) -> Workload:
    parts = [regime(subject, name, per_regime) for name in REGIMES]
    prompts = [prompt for part in parts for prompt in part.prompts[:per_regime]]
    params = [one for part in parts for one in part.params[:per_regime]]
    return Workload(prompts=prompts, params=params, concurrency=1)


def _ids(llm: LLM, work: Workload, concurrency: int, settings: Mapping[str, object]) -> list[tuple[int, ...]]:
    ids = run_pass(llm, replace(work, concurrency=concurrency), settings).ids
    assert ids is not None
    return ids


if __name__ == "__main__":
    main()
