"""Accuracy and tokens per forward over strategies, windows, thresholds and position penalties.

``python -m benchmarks.decode.paper_grid --model tiny`` writes ``benchmarks/results/<date>-paper-grid.md``, like
figures 4 and 5 of arXiv 2512.22737: the published rule over tau x W x lambda, streaming against blockwise
(stop-and-wait) at equal settings, and the exact strategies. Decoding is greedy, on the held-out test split; every
strategy answers the same problems.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common import table, write_result
from jobs.evaluate import MAX_TOKENS, ask
from wedlm_core import LLM, EngineConfig, SamplingParams, Strategy
from wedlm_core.training import corpus
from wedlm_core.training.evaluation import REGIMES, Score, by_regime, held_out, pooled

__all__ = ["Point", "grid", "main", "run_point"]

_EXACT = (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED)
HEADER = ("strategy", "W", "tau", "lambda", "accuracy", "acc low", "acc medium", "acc high", "tokens/forward",
          "t/f low", "t/f medium", "t/f high", "p_cache", "tokens/s")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting of the grid; fields that a strategy does not use are None."""

    strategy: Strategy
    window: int | None = None
    threshold: float | None = None
    penalty: float | None = None

    def params(self) -> SamplingParams:
        """Greedy sampling parameters of this setting."""
        params = SamplingParams(max_tokens=MAX_TOKENS, strategy=self.strategy)
        given = {"window_size": self.window, "entropy_threshold": self.threshold, "position_penalty": self.penalty}
        return dataclasses.replace(params, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def grid(windows: Sequence[int], thresholds: Sequence[float], penalties: Sequence[float]) -> Iterator[Point]:
    """All points: ``autoregressive`` once, ``verified`` over windows, the others over all three parameters."""
    yield Point(strategy=Strategy.AUTOREGRESSIVE)
    for window in windows:
        yield Point(strategy=Strategy.VERIFIED, window=window)
    for strategy in (Strategy.REFERENCE, Strategy.STREAMING, Strategy.BLOCKWISE):
        for window, threshold, penalty in itertools.product(windows, thresholds, penalties):
            yield Point(strategy=strategy, window=window, threshold=threshold, penalty=penalty)


def run_point(llm: LLM, problems: Sequence[corpus.Problem], point: Point) -> tuple[dict[str, Score], float]:
    """Scores per regime, and generated tokens per second of wall-clock time of the whole batch."""
    started = time.monotonic()
    generations = ask(llm, problems, point.params())
    seconds = time.monotonic() - started
    regimes = dict(by_regime(problems, generations))
    return regimes, pooled(regimes.values()).tokens / seconds


def _row(point: Point, regimes: dict[str, Score], speed: float) -> tuple[object, ...]:
    whole = pooled(regimes.values())
    setting = ("-" if v is None else v for v in (point.window, point.threshold, point.penalty))
    accuracies = (f"{regimes[r].accuracy:.3f}" for r in REGIMES)
    ratios = (f"{regimes[r].tokens_per_forward:.2f}" for r in REGIMES)
    return (
        point.strategy.value, *map(str, setting), f"{whole.accuracy:.3f}", *accuracies,
        f"{whole.tokens_per_forward:.2f}", *ratios, f"{whole.prefix_cacheability:.3f}", f"{speed:.0f}",
    )  # fmt: skip


def _against(rows: dict[Point, tuple[dict[str, Score], float]]) -> str:
    """A table that compares streaming with blockwise at equal W, tau and lambda."""
    lines = []
    for point, (regimes, speed) in rows.items():
        other = dataclasses.replace(point, strategy=Strategy.BLOCKWISE)
        if point.strategy != Strategy.STREAMING or other not in rows:
            continue
        ours, theirs = pooled(regimes.values()), pooled(rows[other][0].values())
        lines.append((
            str(point.window), str(point.threshold), str(point.penalty), f"{ours.accuracy:.3f}",
            f"{theirs.accuracy:.3f}", f"{ours.tokens_per_forward:.2f}", f"{theirs.tokens_per_forward:.2f}",
            f"{ours.prefix_cacheability:.3f}", f"{theirs.prefix_cacheability:.3f}",
            f"{speed:.0f}", f"{rows[other][1]:.0f}",
        ))  # fmt: skip
    header = ("W", "tau", "lambda", "acc streaming", "acc blockwise", "t/f streaming", "t/f blockwise",
              "p_cache streaming", "p_cache blockwise", "tokens/s streaming", "tokens/s blockwise")  # fmt: skip
    return table(header, lines)


def main() -> None:
    """Run the grid and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--per-family", type=int, default=5)
    parser.add_argument("--split", default="test", choices=corpus.SPLITS)
    parser.add_argument("--windows", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.1, 0.4, 0.9])
    parser.add_argument("--penalties", type=float, nargs="+", default=[0.0, 0.02, 0.1])
    arguments = parser.parse_args()
    problems = held_out(arguments.split, arguments.per_family)
    llm = LLM(arguments.model, config=EngineConfig(max_num_seqs=64, max_window=max(arguments.windows)))
    ask(llm, problems[:4], SamplingParams(max_tokens=8))  # the first call pays for lazy initialisation
    rows = {}
    for point in grid(arguments.windows, arguments.thresholds, arguments.penalties):
        rows[point] = run_point(llm, problems, point)
        print(*_row(point, *rows[point]), flush=True)
    lists = " ".join(
        f"--{name} {' '.join(map(str, getattr(arguments, name)))}" for name in ("windows", "thresholds", "penalties")
    )
    body = (
        f"{len(problems)} problems of the {arguments.split} split ({arguments.per_family} of each family), greedy, "
        "64 sequences at once, half the prompts as plain text and half through the chat template. Accuracy by the "
        "families' checkers. Tokens per forward (t/f) and p_cache are ratios of sums over the problems. "
        "Tokens/s is wall-clock time of the batch, a single run.\n\n## The grid\n\n"
        + table(HEADER, (_row(point, *found) for point, found in rows.items()))
        + "\n\n## Streaming against blockwise\n\n"
        + _against(rows)
    )
    command = (
        f"python -m benchmarks.decode.paper_grid --model {arguments.model} --per-family {arguments.per_family} {lists}"
    )
    write_result("paper-grid", "Strategies over threshold, window and position penalty", command, body)


if __name__ == "__main__":
    main()
