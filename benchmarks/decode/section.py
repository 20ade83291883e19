"""Settings and results of a part of the decoding benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.decode.passes import Budget


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from the command line.

    Attributes:
        threads: torch threads.
        budget: length of each race.
        models, batches: models and batch sizes to measure.
        sampling: fields of SamplingParams in place of a workload's own.
        quick: use small counts, to test the scripts.
    """

    threads: int
    budget: Budget
    models: Sequence[str]
    batches: Sequence[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the result: title and Markdown body."""

    title: str
    body: str
