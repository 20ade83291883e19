"""GPU suite: the shipped model on the device compared with the CPU, and how often bfloat16 rounding decides a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.decode.passes import Workload, run_pass
from benchmarks.decode.workloads import Subject, regime
from benchmarks.gpu.section import Report, Scale, Scene, goal
from pipeline.commands.calibration_sample import wilson
from wedlm_core import LLM, EngineConfig, Strategy
from wedlm_core.training.corpus import REGIMES

_ALONE: tuple[int, Mapping[str, Any]] = (1, {"strategy": Strategy.AUTOREGRESSIVE})
_VERIFIED: tuple[int, Mapping[str, Any]] = (64, {"strategy": Strategy.VERIFIED})
_SHAPES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "autoregressive, 8 at once": (8, {"strategy": Strategy.AUTOREGRESSIVE}),
    "autoregressive, 64 at once": (64, {"strategy": Strategy.AUTOREGRESSIVE}),
    "verified W=16, 1 at once": (1, {"strategy": Strategy.VERIFIED, "window_size": 16}),
    "verified auto, 64 at once": _VERIFIED,
}

Ids = Sequence[tuple[int, ...]]


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


def tiny(scene: Scene) -> Report:
    """Compare greedy outputs for held-out problems of all regimes, per sequence up to the first difference."""
    device = str(scene.device)
    cpu = _load("cpu", "float32")
    work = _workload(cpu, scene.scale)
    expected = _ids(cpu, work, *_VERIFIED)
    del cpu
    exact = _load(device, "float32")
    rows = []
    same = compare(expected, _ids(exact, work, *_VERIFIED))
    rows.append(_row("float32 on the CPU", f"float32 on {device}", "verified auto, 64 at once", same.row()))
    plain = compare(expected, _ids(exact, work, *_SHAPES["autoregressive, 64 at once"]))
    rows.append(_row("float32 on the CPU", f"float32 on {device}", "autoregressive, 64 at once", plain.row()))
    del exact
    narrow = _load(device, "bfloat16")
    alone = _ids(narrow, work, *_ALONE)
    for shape in scene.scale.near_tie_shapes:
        how = _SHAPES[shape]
        rows.append(_row("bfloat16, one at a time", f"bfloat16 on {device}", shape,
                         compare(alone, _ids(narrow, work, *how)).row()))  # fmt: skip
        print(*rows[-1].values(), sep=" | ", flush=True)
    notes = (
        f"{scene.scale.per_regime} held-out prompts of each regime, greedy, {scene.scale.tiny_tokens} tokens at most. "
        "Tokens are compared up to and including a sequence's first difference (the rest is another text); "
        "rates have their 95% interval."
    )
    found = goal("prompts whose float32 output on the device differs from the CPU's (verified, greedy)", 0.0,
                 float(same.differ), at_most=True)  # fmt: skip
    return Report(title="The shipped model: device against CPU, near-ties", notes=notes, rows=rows, goals=[found])


def _load(device: str, dtype: Literal["float32", "bfloat16"]) -> LLM:
    config = EngineConfig(max_num_seqs=64, prefix_caching=False, max_model_len=1024, num_pages=64 * 18)
    return LLM("tiny", config=config, device=device, dtype=dtype)


def _workload(llm: LLM, scale: Scale) -> Workload:
    per_regime = scale.per_regime
    parts = [regime(Subject(name="tiny", llm=llm), name, per_regime) for name in REGIMES]
    prompts = [prompt for part in parts for prompt in part.prompts[:per_regime]]
    params = [
        replace(one, temperature=0.0, max_tokens=min(one.max_tokens, scale.tiny_tokens))
        for part in parts
        for one in part.params[:per_regime]
    ]
    return Workload(prompts=prompts, params=params, concurrency=1)


def _ids(llm: LLM, work: Workload, concurrency: int, settings: Mapping[str, Any]) -> Ids:
    ids = run_pass(llm, replace(work, concurrency=concurrency), settings).ids
    assert ids is not None
    return ids


def _row(held: str, what: str, shape: str, found: tuple[str, str, str]) -> dict[str, Any]:
    rate, tokens, prompts = found
    return {"against": held, "numbers": what, "shape": shape, "differences per 10^5 tokens (95%)": rate,
            "tokens compared": tokens, "prompts that differ": prompts}  # fmt: skip
