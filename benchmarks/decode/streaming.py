"""Section ``streaming``: ``streaming`` against ``autoregressive`` on the shipped model, speed and accuracy."""

from __future__ import annotations

from benchmarks.common import table
from benchmarks.decode.passes import Contender, Pass, race
from benchmarks.decode.section import Section, Settings, lowest
from benchmarks.decode.workloads import held_out_problems, open_subject, regime
from wedlm_core import Strategy
from wedlm_core.training.corpus import check
from wedlm_core.training.evaluation import REGIMES

__all__ = ["streaming"]

BATCHES = (1, 8, 32, 64)
_HEADER = ("regime", "batch", "streaming / autoregressive", "auto (verified) / autoregressive",
           "accuracy autoregressive", "accuracy streaming", "tokens/forward streaming", "rows/token streaming",
           "same tokens")  # fmt: skip


def streaming(settings: Settings) -> Section:
    """Measure median speed ratios, and the accuracy on the same prompts."""
    contenders = [
        Contender(name=s.value, settings={"strategy": s})
        for s in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED, Strategy.STREAMING)
    ]
    rows, gains = [], []
    with open_subject("tiny") as subject:
        for name in REGIMES:
            for batch in (b for b in BATCHES if b <= max(settings.batches)):
                work = regime(subject, name, batch)
                found = race(subject.llm, work, contenders, settings.budget)
                plain, fast = found.one("autoregressive"), found.one("streaming")
                gain = found.ratio("streaming", "autoregressive")
                gains.append((gain.median, f"{name}, batch {batch}"))
                rows.append(
                    (name, batch, gain, found.ratio("verified", "autoregressive"), f"{_accuracy(name, plain):.3f}",
                     f"{_accuracy(name, fast):.3f}", f"{fast.tokens_per_forward:.2f}", f"{fast.rows_per_token:.2f}",
                     _equal(plain, fast))
                )  # fmt: skip
                print(*rows[-1], sep=" | ", flush=True)
    body = (
        'The shipped model; window_size="auto", tau 0.4, lambda 0.02; high entropy at temperature 1. Accuracy is of '
        "the families' checkers over the prompts of the point; windows follow load, so it may move between runs.\n\n"
    )
    goals = lowest("streaming / autoregressive, every point", 1.0, gains)
    return Section(title="Streaming: what the trade buys", body=body + table(_HEADER, rows), goals=goals)


def _accuracy(regime_name: str, one: Pass) -> float:
    outputs = one.outputs or ()
    problems = held_out_problems(regime_name, len(outputs))
    return sum(check(p, g.text) for p, g in zip(problems, outputs, strict=True)) / max(1, len(outputs))


def _equal(one: Pass, other: Pass) -> str:
    a, b = one.ids or [], other.ids or []
    return f"{sum(x == y for x, y in zip(a, b, strict=True))} of {len(a)}"
