"""The effect of each switch of ``streaming``: tokens per forward, rows per token and accuracy, over thresholds.

    python -m benchmarks.decode.streaming_switches [--per-family 20] [--thresholds 0.1 0.4 0.9]

The shipped model on held-out problems (low and medium entropy greedy, high at temperature 1), W=16. Each switch
is turned off alone, and all together, which gives the published rule. Nothing is timed: the figures are counts and the
same on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.passes import Workload, run_pass
from benchmarks.decode.workloads import prompts_of
from jobs.evaluate import MAX_TOKENS
from wedlm_core import LLM, EngineConfig, SamplingParams, Strategy
from wedlm_core.config.streaming import StreamingSwitches
from wedlm_core.training import corpus
from wedlm_core.training.evaluation import REGIMES, held_out

__all__ = ["Point", "main", "pareto"]

_WINDOW = 16
_CONCURRENCY = 64
_DEFAULT = StreamingSwitches()
_VARIANTS: Mapping[str, StreamingSwitches] = {
    "all parts (default)": _DEFAULT,
    "no token from the prefill": StreamingSwitches(prefill_token=False),
    "leftmost not from the head (fallback on)": StreamingSwitches(head_fills_leftmost=False, fallback=True),
    "not clipped": StreamingSwitches(clip=False),
    "mask id not suppressed": StreamingSwitches(suppress=False),
    "holes free": StreamingSwitches(hole_price=0.0),
    "holes at 0.3 nats": StreamingSwitches(hole_price=0.3),
    "holes at 1 nat": StreamingSwitches(hole_price=1.0),
    "fallback on": StreamingSwitches(fallback=True),
    "no part (published rule, one row more)": StreamingSwitches(
        prefill_token=False, head_fills_leftmost=False, clip=False, suppress=False, hole_price=0.0, fallback=True
    ),
}
_HEADER = ("variant", "tau", "accuracy", "low", "medium", "high", "tokens/forward", "rows/token", "Pareto")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One variant at one threshold; ``accuracy`` per regime and over all problems."""

    variant: str
    threshold: float | None
    accuracy: Mapping[str, float]
    tokens_per_forward: float
    rows_per_token: float

    @property
    def merits(self) -> tuple[float, float, float]:
        """Figures of merit; for each, larger is better."""
        return self.accuracy["all"], self.tokens_per_forward, -self.rows_per_token

    def row(self, on_front: bool) -> tuple[str, ...]:
        """A line of the table."""
        shares = (f"{self.accuracy[name]:.3f}" for name in ("all", *REGIMES))
        threshold = "-" if self.threshold is None else f"{self.threshold:g}"
        return (self.variant, threshold, *shares, f"{self.tokens_per_forward:.2f}", f"{self.rows_per_token:.2f}",
                "front" if on_front else "")  # fmt: skip


def pareto(points: Sequence[Point]) -> list[Point]:
    """The Pareto front: points that no other point matches in every merit and beats in one."""

    def beaten(one: Point, by: Point) -> bool:
        pairs = list(zip(by.merits, one.merits, strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    return [one for one in points if not any(beaten(one, other) for other in points)]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-family", type=int, default=20)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.1, 0.4, 0.9])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    problems = held_out("test", args.per_family)
    points: list[Point] = []
    for variant, switches in _VARIANTS.items():
        llm = _load(switches)
        for threshold in args.thresholds:
            points.append(_measure(llm, problems, variant, Strategy.STREAMING, threshold))
            print(*points[-1].row(False), sep=" | ", flush=True)
    llm = _load(_DEFAULT)
    exact = [_measure(llm, problems, s.value, s, None) for s in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED)]
    published = [_measure(llm, problems, "reference", Strategy.REFERENCE, t) for t in args.thresholds]
    write_result("streaming-switches", "The parts of streaming, one by one",
                 f"python -m benchmarks.decode.streaming_switches --per-family {args.per_family}",
                 _body(points, [*published, *exact], len(problems)), threads=args.threads)  # fmt: skip


def _load(switches: StreamingSwitches) -> LLM:
    # Traced to count every forward: in the statistics, forwards before the first token count as prefill.
    config = EngineConfig(max_num_seqs=_CONCURRENCY, streaming=switches)
    return LLM("tiny", config=config, device="cpu")


def _measure(
    llm: LLM, problems: Sequence[corpus.Problem], variant: str, strategy: Strategy, threshold: float | None
) -> Point:
    tau = 0.4 if threshold is None else threshold
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, window_size=_WINDOW, strategy=strategy, entropy_threshold=tau,
                       temperature=1.0 if problem.regime == "high" else 0.0)
        for problem in problems
    ]  # fmt: skip
    work = Workload(prompts=prompts_of(llm, problems), params=params, concurrency=_CONCURRENCY)
    outputs = run_pass(llm, work).outputs
    assert outputs is not None
    good: dict[str, list[bool]] = {name: [] for name in ("all", *REGIMES)}
    for problem, output in zip(problems, outputs, strict=True):
        right = corpus.check(problem, output.text)
        good["all"].append(right)
        good[problem.regime].append(right)
    tokens = sum(len(output.token_ids) for output in outputs)
    forwards = sum(output.stats.decode_forwards for output in outputs)
    rows = sum(output.stats.rows_forwarded for output in outputs)
    return Point(
        variant=variant,
        threshold=threshold,
        accuracy={name: sum(right) / max(1, len(right)) for name, right in good.items()},
        tokens_per_forward=tokens / forwards,
        rows_per_token=rows / tokens,
    )


def _body(points: Sequence[Point], others: Sequence[Point], problems: int) -> str:
    front = pareto(points)
    defaults = {point.variant for point in front if point.variant in _VARIANTS and _VARIANTS[point.variant] == _DEFAULT}
    verdict = "is" if defaults else "is **not**"
    return (
        f"{problems} held-out problems, W={_WINDOW}, lambda 0.02. Accuracy by the families' checkers. `front`: no "
        "other variant and threshold is at least as good in accuracy, tokens per forward and rows per token, and "
        f"better in one. The default combination {verdict} on the front.\n\n"
        + table(_HEADER, (point.row(point in front) for point in points))
        + "\n\nBeside them, at the same window:\n\n"
        + table(_HEADER, (point.row(False) for point in others))
    )


if __name__ == "__main__":
    main()
