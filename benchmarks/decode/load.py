"""Sections ``load`` and ``long``: ``auto`` against ``autoregressive`` and every fixed window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.common import table
from benchmarks.decode.passes import Budget, Contender, Race, Ratio, Workload, race
from benchmarks.decode.workloads import (
    LONG,
    Subject,
    after_long_prompts,
    open_subject,
    regime,
    regimes_of,
)
from testing.toy import REGIMES
from wedlm_core import Strategy

WINDOWS = (1, 2, 4, 8, 16, 32)
LONG_BATCHES = (1, 8, 32, 64)
HOSTILE_BATCHES = (1, 32)  # no trained model has such a low acceptance
_AUTOREGRESSIVE = Contender(name="autoregressive", settings={"strategy": Strategy.AUTOREGRESSIVE})
_AUTO = Contender(name="auto", settings={"strategy": Strategy.VERIFIED, "window_size": "auto"})
_FIXED = [
    Contender(name=f"W={w}", settings={"strategy": Strategy.VERIFIED, "window_size": w}, may_drop=True) for w in WINDOWS
]
_HEADER = ("model", "regime", "batch", "autoregressive tokens/s", "auto tokens/s", "auto / autoregressive",
           "best fixed window", "auto / best fixed", "tokens/forward auto",
           "rows/token auto")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from the command line.

    Attributes:
        threads: torch threads.
        budget: length of each race.
        models, batches: models and batch sizes to measure.
        sampling: fields of SamplingParams in place of a workload's own.
    """

    threads: int
    budget: Budget
    models: Sequence[str]
    batches: Sequence[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the result: title and Markdown body."""

    title: str
    body: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """The result for one model, regime and batch size."""

    model: str
    regime: str
    batch: int
    race: Race

    @property
    def gain(self) -> Ratio:
        """``auto`` over ``autoregressive``."""
        return self.race.ratio("auto", "autoregressive")

    @property
    def best(self) -> str:
        """The best fixed window of this point."""
        return self.race.best([c.name for c in _FIXED])

    @property
    def against_best(self) -> Ratio:
        """``auto`` over the best fixed window."""
        return self.race.ratio("auto", self.best)

    def row(self) -> tuple[object, ...]:
        """A line of the table."""
        auto = self.race.one("auto")
        return (
            self.model, self.regime, self.batch, f"{self.race.rate('autoregressive'):.0f}",
            f"{self.race.rate('auto'):.0f}", self.gain, self.best, self.against_best,
            f"{auto.tokens_per_forward:.2f}", f"{auto.rows_per_token:.2f}",
        )  # fmt: skip


def load(settings: Settings) -> Section:
    """Measure every batch size and regime of both models."""
    points = []
    for model in settings.models:
        with open_subject(model) as subject:
            for name in regimes_of(subject):
                batches = [b for b in settings.batches if name != "hostile" or b in HOSTILE_BATCHES]
                points += [_measure(subject, name, b, regime(subject, name, b), settings) for b in batches]
    return Section(title="Load: auto against autoregressive and fixed windows", body=_body(points))


def long_contexts(settings: Settings) -> Section:
    """Measure the larger model with about 1,500 cached tokens per sequence."""
    points = []
    if "random-25m" in settings.models:
        with open_subject("random-25m", LONG) as subject:
            for name in REGIMES:
                for batch in (b for b in LONG_BATCHES if b <= max(settings.batches)):
                    points.append(_measure(subject, name, batch, after_long_prompts(subject, name, batch), settings))
    points = [replace(p, model=f"{p.model}, 1,500 tokens of context") for p in points]
    about = (
        "Random prompts of about 1,500 tokens, each sampled twice, their KV kept by prefix caching: decoding is timed, "
        "and a forward reads 15 KB for every token of every sequence, once for all rows of it.\n\n"
    )
    return Section(title="Long contexts", body=about + _body(points))


def _measure(subject: Subject, name: str, batch: int, work: Workload, settings: Settings) -> Point:
    work = replace(work, params=[replace(one, **settings.sampling) for one in work.params])
    contenders = [_AUTOREGRESSIVE, _AUTO, *_FIXED]
    every = [c.name for c in contenders]
    found = race(subject.llm, work, contenders, settings.budget, same_tokens=every)
    point = Point(model=subject.name, regime=name, batch=batch, race=found)
    print(*point.row(), sep=" | ", flush=True)
    return point


def _body(points: Sequence[Point]) -> str:
    rates = [
        (p.model, p.regime, p.batch, *(f"{p.race.rate(c.name):.0f}" for c in _FIXED), f"{p.race.rate('auto'):.0f}")
        for p in points
    ]
    header = ("model", "regime", "batch", *(c.name for c in _FIXED), "auto")
    return (
        "Ratios are medians over interleaved rounds, with the lowest and highest round. All contenders gave the tokens "
        "of `autoregressive` in every pass (asserted). Prompts are prefilled in the timed pass; the next prompt enters "
        "as one finishes, and the clock stops when there is none left to enter.\n\n"
        + table(_HEADER, (p.row() for p in points))
        + "\n\nTokens/s of each fixed window (those that could not be the best ran in one round only, and were stopped "
        "at twice the time of the others):\n\n" + table(header, rates)
    )
