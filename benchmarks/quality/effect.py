"""What a score is worth on outputs of the hard tasks: accuracy of the best half, and of the best of four samples.

What is kept comes from :func:`pipeline.filter`. Of a resample of the problems the best half is chosen anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import pipeline
from benchmarks.quality.intervals import Interval, bootstrap, wilson
from benchmarks.quality.tasks import is_right

__all__ = ["SCORES", "BestHalf", "BestOfFour", "Graded", "best_half", "best_of_four", "graded"]

SCORES: Mapping[str, str] = {
    "confidence: worst + 10 mean log-probability": "confidence",
    "worst log-probability": "worst_logprob",
    "mean log-probability": "mean_logprob",
    "sum of log-probabilities": "evidence.mean_logprob * completion_tokens",
    "mean log-probability times root of length": "evidence.mean_logprob * sqrt(completion_tokens)",
    "mean entropy": "mean_entropy",
    "largest entropy": "max_entropy",
    "draft agreement": "draft_agreement",
    "mean log-probability and mean entropy": "evidence.mean_logprob - evidence.mean_entropy",
    "worst log-probability and largest entropy": "evidence.worst_logprob - evidence.max_entropy",
    "the shortest": "-completion_tokens",
}
"""Name in the table -> value of ``score``."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """An output with what is right in it, problem by problem.

    Attributes:
        right_PS: bool, problems by samples.
        family_P: number of the family of each problem.
    """

    right_PS: np.ndarray
    family_P: np.ndarray

    @cached_property
    def single(self) -> np.ndarray:
        """Share of the samples that are right: the expected accuracy of a single sample."""
        share_P: np.ndarray = self.right_PS.mean(axis=1)
        return share_P


def graded(output: Path) -> Graded:
    """Grade an output."""
    table = pipeline.read(output, format="arrow")
    columns = [table[name].to_pylist() for name in ("family", "prompt", "answer", "text")]
    right = np.array([is_right(*values) for values in zip(*columns, strict=True)])
    samples = 1 + max(table["sample_index"].to_pylist())
    families = table["family"].to_pylist()[::samples]
    names = sorted(set(families))
    return Graded(right_PS=right.reshape(-1, samples), family_P=np.array([names.index(name) for name in families]))


@dataclass(frozen=True, kw_only=True)
class BestHalf:
    """Accuracy of the rows that are kept, and what that is above the accuracy of all."""

    kept: Interval
    gain: Interval


def best_half(source: Path, score: str, truth: Graded, *, by_family: bool) -> BestHalf:
    """Keep the better half of the rows of an output with one sample each, of each family or of all."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = pipeline.filter(
            source, to=f"{scratch}/half", keep="best 50%", score=SCORES[score], by="family" if by_family else ()
        )
        numbers = [int(row_id.rpartition(":")[2]) for row_id in kept.to_arrow()["row_id"].to_pylist()]
        # The whole order, by which a resample is halved: rank 1 is the best.
        ranks = pipeline.filter(source, to=f"{scratch}/all", keep="best 100%", score=SCORES[score]).to_arrow()
    rank_P = np.array([choice["rank"] for choice in ranks["selection"].to_pylist()])
    right_P, family_P = truth.right_PS[:, 0], truth.family_P
    groups_P = family_P if by_family else np.zeros_like(family_P)

    def gain(drawn: np.ndarray) -> float:
        return float(_upper_half(right_P[drawn], rank_P[drawn], groups_P[drawn]).mean() - right_P[drawn].mean())

    chosen = right_P[numbers]
    assert chosen.sum() == _upper_half(right_P, rank_P, groups_P).sum(), "the filter and the bootstrap halve alike"
    return BestHalf(kept=wilson(int(chosen.sum()), len(chosen)), gain=bootstrap(gain, len(right_P)))


def _upper_half(right_P: np.ndarray, rank_P: np.ndarray, groups_P: np.ndarray) -> np.ndarray:
    kept = []
    for group in np.unique(groups_P):
        inside = np.flatnonzero(groups_P == group)
        best = inside[np.argsort(rank_P[inside], kind="stable")][: -(-len(inside) // 2)]
        kept.append(right_P[best])
    return np.concatenate(kept)


@dataclass(frozen=True, kw_only=True)
class BestOfFour:
    """Accuracy of the best of four samples, and what that is above one sample, and above the greedy row."""

    kept: Interval
    gain: Interval
    over_greedy: Interval


def best_of_four(source: Path, score: str, truth: Graded, greedy: Graded) -> BestOfFour:
    """Keep one of the four samples of each row of an output."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = pipeline.filter(source, to=f"{scratch}/one", keep="best 1 per row", score=SCORES[score]).to_arrow()
    sample_P = np.array(kept["sample_index"].to_pylist())
    right_P = truth.right_PS[np.arange(len(sample_P)), sample_P]
    return BestOfFour(
        kept=wilson(int(right_P.sum()), len(right_P)),
        gain=bootstrap(lambda drawn: float((right_P[drawn] - truth.single[drawn]).mean()), len(right_P)),
        over_greedy=bootstrap(
            lambda drawn: float((right_P[drawn].astype(float) - greedy.right_PS[drawn, 0]).mean()), len(right_P)
        ),
    )
