"""Score generations on corpus problems: accuracy and decoding figures, per family and per entropy regime.

Takes problems and finished generations, and knows no engine, so that any decoder can be scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wedlm_core.statistics import prefix_cacheability, tokens_per_forward
from wedlm_core.training import corpus
from wedlm_core.types import Generation

__all__ = ["REGIMES", "Score", "by_family", "by_regime", "held_out", "pooled", "score_one"]

REGIMES = ("low", "medium", "high")


@dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over generations. The figures are ratios of sums, so long generations weigh more.

    Attributes:
        problems, correct: number of generations, and how many the family's checker accepts.
        tokens, forwards, rows: generated tokens, decode forwards, token rows of these.
        ratio_sum: sum over generations of tokens per forward.
    """

    problems: int = 0
    correct: int = 0
    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    ratio_sum: float = 0.0

    @property
    def accuracy(self) -> float:
        """Share of correct answers."""
        return self.correct / max(1, self.problems)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward over all generations; see :mod:`wedlm_core.statistics`."""
        return tokens_per_forward(self.tokens, self.forwards)

    @property
    def mean_tokens_per_forward(self) -> float:
        """Mean over generations of tokens per forward; short and long answers weigh the same."""
        return self.ratio_sum / max(1, self.problems)

    @property
    def prefix_cacheability(self) -> float:
        """p_cache over all generations; see :mod:`wedlm_core.statistics`."""
        return prefix_cacheability(self.tokens, self.rows)


def held_out(split: corpus.Split, per_family: int, families: Iterable[str] | None = None) -> list[corpus.Problem]:
    """Distinct problems of a split, ``per_family`` of each family (all families by default)."""
    names = corpus.FAMILIES if families is None else families
    return [problem for name in names for problem in corpus.distinct(name, split, per_family)]


def score_one(problem: corpus.Problem, generation: Generation) -> Score:
    """The score of one generation."""
    stats = generation.stats
    return Score(
        problems=1,
        correct=int(corpus.check(problem, generation.text)),
        tokens=stats.generated_tokens,
        forwards=stats.decode_forwards,
        rows=stats.rows_forwarded,
        ratio_sum=stats.tokens_per_forward,
    )


def pooled(scores: Iterable[Score]) -> Score:
    """The field-wise sum of scores."""
    sums: dict[str, float] = dict.fromkeys(Score.__dataclass_fields__, 0)
    for score in scores:
        for name in sums:
            sums[name] += getattr(score, name)
    counts = {name: int(value) for name, value in sums.items() if name != "ratio_sum"}
    return Score(**counts, ratio_sum=sums["ratio_sum"])


def by_family(problems: Sequence[corpus.Problem], generations: Sequence[Generation]) -> Mapping[str, Score]:
    """Scores per family; generation i answers problem i."""
    return _grouped([p.family for p in problems], problems, generations)


def by_regime(problems: Sequence[corpus.Problem], generations: Sequence[Generation]) -> Mapping[str, Score]:
    """Scores per entropy regime."""
    return _grouped([p.regime for p in problems], problems, generations)


def _grouped(
    keys: Sequence[str], problems: Sequence[corpus.Problem], generations: Sequence[Generation]
) -> Mapping[str, Score]:
    groups: dict[str, list[Score]] = {}
    for key, problem, generation in zip(keys, problems, generations, strict=True):
        groups.setdefault(key, []).append(score_one(problem, generation))
    return {key: pooled(scores) for key, scores in groups.items()}
