"""Report on the shipped model's training: loss curve, and every strategy on the held-out test split.

``python -m benchmarks.training.tiny_training --run runs/tiny`` writes ``benchmarks/results/<date>-tiny-training.md``
with the run's ``curve.csv`` as CSV and PNG beside it.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import table, write_result
from jobs.evaluate import Result, measure
from wedlm_core import LLM, EngineConfig, Strategy
from wedlm_core.training.curves import plot_curves
from wedlm_core.training.evaluation import REGIMES, Score, held_out

__all__ = ["main"]

REQUIRED = {
    **dict.fromkeys(("counting", "copying", "repeating"), 0.97),
    **dict.fromkeys(("equations", "addition", "subtraction", "word_problems"), 0.90),
    "stories": 0.95,
}
"""Required accuracy of ``autoregressive`` (= ``verified``) on the test split."""
REQUIRED_RATIO = {"low": 6.0, "medium": 5.0, "high": 2.0}
"""Required tokens per forward of ``verified`` with 16 masks."""


def _by_strategy(results: Sequence[Result], kind: str) -> str:
    """One line per family or regime: accuracy and tokens per forward of every strategy."""
    groups: list[Mapping[str, Score]] = [r.families if kind == "family" else r.regimes for r in results]
    names = list(groups[0]) if kind == "family" else list(REGIMES)
    header = [kind, "problems", *(f"{r.strategy} {what}" for r in results for what in ("acc", "t/f"))]
    rows = [
        [name, groups[0][name].problems]
        + [f"{v:.3f}" if i == 0 else f"{v:.2f}" for g in groups for i, v in enumerate(_figures(g[name]))]
        for name in names
    ]
    return table(header, rows)


def _figures(score: Score) -> tuple[float, float]:
    return score.accuracy, score.tokens_per_forward


def _targets(results: Mapping[str, Result]) -> str:
    plain, verified = results[Strategy.AUTOREGRESSIVE], results[Strategy.VERIFIED]
    rows: list[tuple[object, ...]] = []
    for name, least in REQUIRED.items():
        found = plain.families[name].accuracy
        rows.append((f"{name}, accuracy", f"{least:.2f}", f"{found:.3f}", "met" if found >= least else "MISSED"))
    for name, least in REQUIRED_RATIO.items():
        found = verified.regimes[name].tokens_per_forward
        rows.append(
            (f"{name} entropy, tokens per forward", least, f"{found:.2f}", "met" if found >= least else "MISSED")
        )
    return table(("target", "at least", "measured", ""), rows)


def _curve(run: Path, stem: str, results: Path) -> str:
    shutil.copyfile(run / "curve.csv", results / f"{stem}-curve.csv")
    plot_curves(run / "curve.csv", results / f"{stem}-curve.png", "tiny: training losses")
    with (run / "curve.csv").open(newline="", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    return (
        f"{last['step']} optimiser steps in {float(last['seconds']) / 60:.1f} minutes of training time.\n\n"
        f"![loss curve]({stem}-curve.png) ([CSV]({stem}-curve.csv))"
    )


def main() -> None:
    """Measure, plot and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--run", type=Path, default=Path("runs/tiny"))
    parser.add_argument("--per-family", type=int, default=60)
    parser.add_argument("--window", type=int, default=16)
    arguments = parser.parse_args()
    problems = held_out("test", arguments.per_family)
    llm = LLM(arguments.model, config=EngineConfig(max_num_seqs=64))
    found = measure(llm, problems, [s.value for s in Strategy], window=arguments.window)
    equal = {r.strategy: r.equal_to_autoregressive for r in found}
    speed = {r.strategy: sum(s.tokens for s in r.regimes.values()) / r.seconds for r in found}
    p_cache = [[r.strategy, *(f"{r.regimes[g].prefix_cacheability:.3f}" for g in REGIMES),
                f"{equal[r.strategy]:.4f}", f"{speed[r.strategy]:.0f}"] for r in found]  # fmt: skip
    head = ("strategy", *(f"p_cache {g}" for g in REGIMES), "equal to autoregressive", "tokens/s")
    body = (
        f"{len(problems)} problems of the test split (up to {arguments.per_family} of each family), greedy, "
        f"W={arguments.window}, tau=0.4, lambda=0.02, half the prompts as plain text and half through the chat "
        "template. acc: accuracy by the family's checker (exact match, or a validator for the high-entropy "
        "families). t/f: tokens per decode forward, ratio of sums. Single run; tokens/s with 64 sequences at once.\n\n"
        f"## Targets\n\n{_targets({r.strategy: r for r in found})}\n\n"
        f"## Regimes\n\n{_by_strategy(found, 'regime')}\n\n{table(head, p_cache)}\n\n"
        f"## Families\n\n{_by_strategy(found, 'family')}\n"
    )
    command = (
        f"python -m benchmarks.training.tiny_training --per-family {arguments.per_family} --window {arguments.window}"
    )
    path = write_result("tiny-training", "Training results of the shipped model", command, body)
    curve = _curve(arguments.run, path.stem, path.parent)
    path.write_text(path.read_text(encoding="utf-8") + f"\n## Training\n\n{curve}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
