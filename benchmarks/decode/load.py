"""Sections ``load``, ``long`` and ``mixed``: ``auto`` against ``autoregressive`` and every fixed window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.common import table
from benchmarks.decode.passes import Contender, Pass, Race, Ratio, Workload, race
from benchmarks.decode.section import Goal, Section, Settings, lowest
from benchmarks.decode.workloads import (
    LONG,
    Subject,
    behind_long_prompts,
    mixed,
    open_subject,
    regime,
    regimes_of,
)
from wedlm_core import Strategy
from wedlm_core.config.step_cost import StepCost
from wedlm_core.training.corpus import REGIMES

WINDOWS = (1, 2, 4, 8, 16, 32)
MIXED_BATCHES = (16, 32, 64)
LONG_BATCHES = (1, 8, 32, 64)
HOSTILE_BATCHES = (1, 32)  # no trained model has such a low acceptance
_NOISE = 0.03
_AUTOREGRESSIVE = Contender(name="autoregressive", settings={"strategy": Strategy.AUTOREGRESSIVE})
_AUTO = Contender(name="auto", settings={"strategy": Strategy.VERIFIED, "window_size": "auto"})
_FIXED = [
    Contender(name=f"W={w}", settings={"strategy": Strategy.VERIFIED, "window_size": w}, may_drop=True) for w in WINDOWS
]
_HEADER = ("model", "regime", "batch", "autoregressive tokens/s", "auto tokens/s", "auto / autoregressive",
           "if every draft were right", "best fixed window", "auto / best fixed", "tokens/forward auto",
           "rows/token auto")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """The result for one model, regime and batch size.

    Attributes:
        ceiling: ``auto`` over ``autoregressive`` if every draft were right: see :func:`_ceiling`.
    """

    model: str
    regime: str
    batch: int
    race: Race
    ceiling: float

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

    @property
    def name(self) -> str:
        """A description of the point."""
        return f"{self.model}, {self.regime}, batch {self.batch}"

    def row(self) -> tuple[object, ...]:
        """A line of the table."""
        auto = self.race.one("auto")
        return (
            self.model, self.regime, self.batch, f"{self.race.rate('autoregressive'):.0f}",
            f"{self.race.rate('auto'):.0f}", self.gain, f"{self.ceiling:.2f}", self.best, self.against_best,
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
    return Section(
        title="Load: auto against autoregressive and fixed windows", body=_body(points), goals=_goals(points)
    )


def long_contexts(settings: Settings) -> Section:
    """Measure the larger model with about 1,500 cached tokens per sequence."""
    points = []
    if "random-25m" in settings.models:
        with open_subject("random-25m", LONG) as subject:
            for name in REGIMES:
                for batch in (b for b in LONG_BATCHES if b <= max(settings.batches)):
                    points.append(_measure(subject, name, batch, behind_long_prompts(subject, name, batch), settings))
    points = [replace(p, model=f"{p.model}, 1,500 tokens of context") for p in points]
    about = (
        "Random prompts of about 1,500 tokens, each sampled twice, their KV kept by prefix caching: decoding is timed, "
        "and a forward reads 15 KB for every token of every sequence, once for all rows of it.\n\n"
    )
    return Section(title="Long contexts", body=about + _body(points), goals=_goals(points))


def mixed_batches(settings: Settings) -> Section:
    """Measure batches that mix the three regimes."""
    points = []
    for model in settings.models:
        with open_subject(model) as subject:
            batches = [b for b in MIXED_BATCHES if b <= max(settings.batches)]
            points += [_measure(subject, "mixed", b, mixed(subject, b), settings) for b in batches]
    goals = [
        goal
        for model, own in _by_model(points).items()
        for goal in lowest(
            f"auto / best fixed window, mixed batches, {model}", 1.1, ((p.against_best.median, p.name) for p in own)
        )
    ]
    return Section(title="Mixed batches", body=_body(points), goals=goals)


def _measure(subject: Subject, name: str, batch: int, work: Workload, settings: Settings) -> Point:
    contenders = [_AUTOREGRESSIVE, _AUTO, *_FIXED]
    every = [c.name for c in contenders]
    found = race(subject.llm, work, contenders, settings.budget, same_tokens=every)
    ceiling = _ceiling(subject.llm.engine.measure_step_cost(), work, found.one("autoregressive"))
    point = Point(model=subject.name, regime=name, batch=batch, race=found, ceiling=ceiling)
    print(*point.row(), sep=" | ", flush=True)
    return point


def _ceiling(cost: StepCost, work: Workload, base: Pass) -> float:
    """An upper bound of verified decoding over the autoregressive pass ``base``, from the measured step costs.

    To commit k tokens of a sequence, a forward needs at least 2k - 1 of its rows: the last token, k - 1 drafts, and the
    k - 1 masks that propose the next drafts. Prompts are then prefilled k times as often (except for cached parts). The
    remaining cost of a step is that of ``base`` and is assumed constant.
    """
    prompt, output = sum(map(len, work.prompts)), sum(len(g.token_ids) for g in base.finished)
    prefilled = prompt - sum(g.stats.cached_prompt_tokens for g in base.finished)
    step_seconds, context = work.concurrency / base.rate, (prompt + output / 2) / len(work.prompts)
    tokens = np.arange(1, WINDOWS[-1] + 2)
    rows = work.concurrency * (2.0 * tokens - 1 + tokens * prefilled / output)
    seconds = cost(rows, work.concurrency * context, work.concurrency)
    return float((tokens * step_seconds / (step_seconds + seconds - seconds[0])).max())


def _body(points: Sequence[Point]) -> str:
    rates = [
        (p.model, p.regime, p.batch, *(f"{p.race.rate(c.name):.0f}" for c in _FIXED), f"{p.race.rate('auto'):.0f}")
        for p in points
    ]
    header = ("model", "regime", "batch", *(c.name for c in _FIXED), "auto")
    return (
        "Ratios are medians over interleaved rounds, with the lowest and highest round. All contenders gave the tokens "
        "of `autoregressive` in every pass (asserted). Prompts are prefilled in the timed pass; the next prompt enters "
        'as one finishes, and the clock stops when there is none left to enter. "If every draft were right" is no '
        "measurement of decoding but a bound: forwards cost as in the table of step costs, one of k tokens has "
        "2k - 1 rows a sequence, nothing is ever rejected, and the host does its work in no time.\n\n"
        + table(_HEADER, (p.row() for p in points))
        + "\n\nTokens/s of each fixed window (those that could not be the best ran in one round only, and were stopped "
        "at twice the time of the others):\n\n" + table(header, rates)
    )


def _by_model(points: Sequence[Point]) -> dict[str, list[Point]]:
    return {name: [p for p in points if p.model == name] for name in dict.fromkeys(p.model for p in points)}


def _goals(points: Sequence[Point]) -> list[Goal]:
    def gains(
        own: Sequence[Point], batch: int | None = None, regimes: Sequence[str] | None = None
    ) -> list[tuple[float, str]]:
        chosen = (p for p in own if p.batch in (batch or p.batch,) and p.regime in (regimes or (p.regime,)))
        return [(p.gain.median, p.name) for p in chosen]

    easy, goals = ("low", "medium"), []
    for model, own in _by_model(points).items():
        goals += [
            *lowest(f"auto / autoregressive, every point (3% for noise), {model}", 1 - _NOISE, gains(own)),
            *lowest(f"auto / autoregressive, batch 1, low and medium, {model}", 4.0, gains(own, 1, easy)),
            *lowest(f"auto / autoregressive, batch 1, high, {model}", 1.5, gains(own, 1, ("high",))),
            *lowest(f"auto / autoregressive, batch 32, low and medium, {model}", 1.3, gains(own, 32, easy)),
            *lowest(
                f"auto / best fixed window, every point, {model}",
                0.95,
                ((p.against_best.median, p.name) for p in own),
            ),
        ]
    return goals
