"""The sample of rows that settings are found on, and the engine that generates for it, with the seconds that takes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline.commands.run_checks import sampled
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.prompts.tokenize import PROMPT_IDS
from pipeline.types import Slice, Unit
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table

PREFIX = "__wedlm_out_"
"""Of the result columns, so that they meet no column of the input."""


class CalibrationSample:
    """Prepared rows and an engine."""

    def __init__(self, job: Job, table: pa.Table) -> None:
        self._job, self._table = job, table.combine_chunks()
        self._unit = Unit(
            unit_id="calibration", index=0, rows=Slice(file=0, first_row=0, num_rows=self._table.num_rows)
        )
        self._engine = load_engine(job, job.config.num_threads)

    def generate(self, **sampling: Any) -> tuple[pa.Table, float]:
        """Output rows with these sampling parameters in place of the configured ones, and the seconds they took.

        Column names are without prefix.
        """
        config = replace(self._job.config, sampling=replace(self._job.config.sampling, **sampling))
        begin = time.perf_counter()
        out = preview_table(replace(self._job, config=config), self._engine, self._unit, self._table)
        seconds = time.perf_counter() - begin
        return out.rename_columns([name.removeprefix(PREFIX) for name in out.column_names]), seconds


def sample_token_ids(config: RunConfig, rows: int) -> list[list[int]]:
    """Token ids of the prompts of a sample of the input; rows whose prompt fails are left out.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    with sampled(config, rows) as (_, _, table):
        return [ids for ids in table[PROMPT_IDS].to_pylist() if ids]


_Z = 1.959964  # 95%, two-sided


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its 95% confidence interval."""

    estimate: float
    low: float
    high: float


def wilson(share: float, count: int) -> Interval:
    """Wilson's score interval of a share seen in ``count`` samples.

    Token agreement is a share within each sample. It is treated as if each sample agreed entirely or not at all with
    that probability, which overstates the spread: the interval is at least as wide as it has to be.
    """
    square = _Z * _Z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    return Interval(estimate=share, low=max(0.0, centre - half), high=min(1.0, centre + half))


def samples_to_show(share: float) -> int | None:
    """Number of samples that, all agreeing, put the low end of the interval at ``share``; None if no number does."""
    return None if share >= 1 else math.ceil(_Z * _Z * share / (1 - share))


def token_agreement(ours: Sequence[int], other: Sequence[int]) -> float:
    """Number of equal tokens at equal positions over the longer length; 1 if both are empty."""
    longer = max(len(ours), len(other))
    return sum(a == b for a, b in zip(ours, other, strict=False)) / longer if longer else 1.0


def extract(text: str, regex: str | None) -> str | None:
    """The answer in a text: the last match's first group, or the whole match; None without a match."""
    if regex is None:
        return text.strip()
    last = None
    for match in re.finditer(regex, text):
        last = match
    if last is None:
        return None
    answer: str | None = last.group(1) if last.re.groups else last.group(0)
    return None if answer is None else answer.strip()


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers that count as correct for each sample.

    Attributes:
        verified: the answer in the verified text; None if there is none.
        gold: the input's own answer as text; None if it has none or no column was given.
        regex: finds the answer in a text.
    """

    verified: Sequence[str | None]
    gold: Sequence[str | None]
    regex: str | None

    @classmethod
    def of(cls, texts: Sequence[str], regex: str | None, gold: Sequence[Any] | None) -> Answers:
        """From verified texts and the cells of an answer column, which may hold the answer alone or a text with it."""
        cells = [None] * len(texts) if gold is None else [None if g is None else str(g).strip() for g in gold]
        good = [cell if cell is None else extract(cell, regex) or cell for cell in cells]
        return cls(verified=[extract(text, regex) for text in texts], gold=good, regex=regex)


def answer_agreement(answers: Answers, texts: Sequence[str]) -> list[float]:
    """For each sample 1.0 if its answer is that of the verified text or the input's own, else 0.0."""
    found = [extract(text, answers.regex) for text in texts]
    triples = zip(found, answers.verified, answers.gold, strict=True)
    return [float(one == verified or (one is not None and one == gold)) for one, verified, gold in triples]
