"""``calibrate``: finds the largest entropy threshold whose output still agrees with ``verified``, on a sample of rows.

``verified`` gives the autoregressive output. ``streaming`` and ``reference`` fill masks whose entropy is below a
threshold, and their output may differ. The threshold that a job can afford depends on its prompts, so it is measured.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from pipeline import layout
from pipeline.commands.agreement import Answers, Interval, answer_agreement, samples_to_show, token_agreement, wilson
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.units import check_any_rows
from pipeline.prompts.model_files import check_model
from pipeline.prompts.tokenize import prepare_table
from pipeline.sources import Source, source_of
from pipeline.storage.local import LocalStorage
from pipeline.types import Slice, Unit
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table

__all__ = ["GRID", "Calibration", "CalibrationConfig", "Trial", "bounds", "calibrate"]

GRID = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9, 1.4, 2.0, 3.0)
"""Thresholds in nats; tried in ascending order until two in a row fail."""
_PREFIX = "__wedlm_out_"
_FAILURES_TO_STOP = 2
_PER_ROW = ("strategy", "entropy_threshold")


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """What to calibrate, and for which floor.

    Attributes:
        floor: least agreement with the verified output, in (0, 1].
        measure: "token": equal tokens at equal positions over the longer length, averaged over samples; "answer": share
            of samples whose answer is that of verified output, or the one in ``answer_column``.
        strategy: the strategy whose threshold is searched.
        rows: largest sample size; the same rows are taken every time.
        answer_regex: the answer in a text: the last match's first group (the whole match where it has none); None
            takes the whole text.
        answer_column: input column with good answers.
        confident: hold the lower end of the 95% interval to the floor, not the estimate.
        refine: how often the interval between the last threshold that passed and the first that failed is halved.

    Raises:
        ConfigError: a value is out of range, or a floor that a sample of this size cannot show.
    """

    floor: float
    measure: Literal["token", "answer"] = "token"
    strategy: Literal["streaming", "reference"] = "streaming"
    rows: int = 200
    answer_regex: str | None = None
    answer_column: str | None = None
    confident: bool = False
    refine: int = 3

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0 < self.floor <= 1:
            raise ConfigError(f"floor={self.floor}: agreement is a share in (0, 1]. Ask for example for 0.98.")
        if self.rows < 1:
            raise ConfigError(f"rows={self.rows}: at least 1. Use 200 or more to tell 0.98 from 0.95.")
        if self.refine < 0:
            raise ConfigError(f"refine={self.refine}: 0 or more. Use 3.")
        if self.measure == "token" and (self.answer_regex is not None or self.answer_column is not None):
            raise ConfigError('answer_regex and answer_column need measure="answer". Set it, or drop them.')
        try:
            re.compile(self.answer_regex or "")
        except re.error as error:
            raise ConfigError(f"answer_regex={self.answer_regex!r}: not a regular expression ({error}).") from error


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of one setting on the sample.

    Attributes:
        threshold: nats; None for ``verified``.
        agreement: agreement with the verified output, with its 95% interval over samples.
        tokens_per_forward: generated tokens over decode forwards, over the whole sample.
        rows_per_token: token rows forwarded per generated token, over the whole sample.
    """

    threshold: float | None
    agreement: Interval
    tokens_per_forward: float
    rows_per_token: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        threshold: the largest threshold that passed, if all smaller ones that were tried passed too; None if none did.
        verified: the verified output, which the others are compared with.
        trials: every threshold tried, ascending.
        samples: number of compared samples; failed rows have none.
    """

    threshold: float | None
    verified: Trial
    trials: Sequence[Trial]
    samples: int


def calibrate(config: RunConfig, wanted: CalibrationConfig) -> Calibration:
    """Generate for a sample with ``verified`` and with several thresholds, in this process; writes no output.

    Raises:
        ConfigError: the settings leave nothing to calibrate, or the sample is too small to show the floor.
        SourceError: the input cannot be read, has no rows, or every row of the sample fails.
    """
    _check(config, wanted)
    check_model(config)
    config = replace(
        config,
        columns=() if wanted.answer_column is None else (wanted.answer_column,),
        column_prefix=_PREFIX,
        include_token_ids=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        sample = _Sample(resolve_job(config, source_of(config, storage), storage), wanted.rows, config.input)
        return _Search(sample, wanted).run()


def _check(config: RunConfig, wanted: CalibrationConfig) -> None:
    own = sorted(set(_PER_ROW) & set(config.sampling_columns))
    if own:
        raise ConfigError(f"sampling_columns={own}: rows that set it themselves cannot be calibrated. Drop it here.")
    if config.sampling.logprobs:
        raise ConfigError(f"sampling.logprobs: {wanted.strategy} has none. Set it to false.")


class _Sample:
    """Prepared rows and an engine."""

    def __init__(self, job: Job, rows: int, given: Any) -> None:
        self._job, self._table = job, _read(job, rows, given)
        self._unit = Unit(
            unit_id="calibration", index=0, rows=Slice(file=0, first_row=0, num_rows=self._table.num_rows)
        )
        self._engine = load_engine(job, job.config.num_threads)

    def generate(self, **sampling: Any) -> pa.Table:
        """Output rows with these sampling parameters in place of the configured ones; column names without prefix."""
        config = replace(self._job.config, sampling=replace(self._job.config.sampling, **sampling))
        out = preview_table(replace(self._job, config=config), self._engine, self._unit, self._table)
        return out.rename_columns([name.removeprefix(_PREFIX) for name in out.column_names])


def _read(job: Job, rows: int, given: Any) -> pa.Table:
    """A prepared sample, in input order; which rows it has depends on the input and ``rows`` only."""
    found = heapq.nsmallest(rows, job.source.slices(1), key=lambda piece: _lot(job.source, piece))
    check_any_rows(len(found), given)
    found.sort(key=lambda piece: (piece.file, piece.first_row))
    tables = []
    for _, own in itertools.groupby(found, key=lambda piece: piece.file):
        pieces = list(own)
        for piece, table in zip(pieces, job.source.read(pieces), strict=True):
            tables.append(prepare_table(table, Unit(unit_id="calibration", index=0, rows=piece), job))
    return pa.concat_tables(tables).combine_chunks()


def _lot(source: Source, piece: Slice) -> bytes:
    key = f"{source.files[piece.file].key}\x1f{piece.first_row}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def bounds(held: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The largest threshold below the first one that failed, and that one; None if there is none.

    A threshold that passed above one that failed is chance and does not count.
    """
    over = min((threshold for threshold, passed in held.items() if not passed), default=None)
    best = max((threshold for threshold in held if over is None or threshold < over), default=None)
    return best, over


class _Search:
    """Tries thresholds and keeps the results."""

    def __init__(self, sample: _Sample, wanted: CalibrationConfig) -> None:
        self._sample, self._wanted = sample, wanted
        self._base = sample.generate(strategy="verified")
        self._kept = [i for i, error in enumerate(self._base["error"].to_pylist()) if error is None]
        if not self._kept:
            raise SourceError(f"every row of the sample failed, the first with: {self._base['error'][0]}")
        if wanted.confident:
            self._check_floor()
        self._answers = self._good_answers() if wanted.measure == "answer" else None
        self._trials: dict[float, Trial] = {}

    def _check_floor(self) -> None:
        """Raise if even perfect agreement of this sample would not show the floor."""
        count, floor = len(self._kept), self._wanted.floor
        best, needed = wilson(1.0, count).low, samples_to_show(floor)
        if best < floor:
            hope = "never be shown" if needed is None else f"be shown with {needed} samples or more"
            raise ConfigError(
                f"floor={floor}: {count} samples that all agree show {best:.4f} with 95% confidence; this floor can "
                f"{hope}. Raise rows, lower the floor, or drop confident."
            )

    def _good_answers(self) -> Answers:
        wanted = self._wanted
        gold = None if wanted.answer_column is None else self._column(self._base, wanted.answer_column)
        answers = Answers.of(self._column(self._base, "text"), wanted.answer_regex, gold)
        if not any(answer is not None for answer in answers.verified):
            raise ConfigError(
                f"answer_regex={wanted.answer_regex!r}: matches none of the {len(self._kept)} verified texts; the "
                f"first is {self._column(self._base, 'text')[0]!r}. Correct it."
            )
        return answers

    def run(self) -> Calibration:
        """Try the grid in ascending order until thresholds fail, then halve the interval."""
        failures = 0
        for threshold in GRID:
            failures = 0 if self._passes(threshold) else failures + 1
            if failures == _FAILURES_TO_STOP:
                break
        for _ in range(self._wanted.refine):
            best, over = bounds(self._held())
            if best is None or over is None:
                break
            self._passes(round((best + over) / 2, 4))
        return Calibration(
            threshold=self._best(),
            verified=self._trial(None, self._base),
            trials=[self._trials[t] for t in sorted(self._trials)],
            samples=len(self._kept),
        )

    def _best(self) -> float | None:
        return bounds(self._held())[0]

    def _held(self) -> dict[float, bool]:
        return {threshold: self._holds(trial) for threshold, trial in self._trials.items()}

    def _passes(self, threshold: float) -> bool:
        out = self._sample.generate(strategy=self._wanted.strategy, entropy_threshold=threshold)
        self._trials[threshold] = self._trial(threshold, out)
        return self._holds(self._trials[threshold])

    def _holds(self, trial: Trial) -> bool:
        found = trial.agreement.low if self._wanted.confident else trial.agreement.estimate
        return found >= self._wanted.floor

    def _trial(self, threshold: float | None, out: pa.Table) -> Trial:
        if self._answers is None:
            pairs = zip(self._column(self._base, "token_ids"), self._column(out, "token_ids"), strict=True)
            shares = [token_agreement(ours, other) for ours, other in pairs]
        else:
            shares = answer_agreement(self._answers, self._column(out, "text"))
        stats = self._column(out, "stats")
        tokens = sum(self._column(out, "completion_tokens"))
        return Trial(
            threshold=threshold,
            agreement=wilson(sum(shares) / len(shares), len(shares)),
            tokens_per_forward=tokens / max(1, sum(s["decode_forwards"] for s in stats)),
            rows_per_token=sum(s["rows_forwarded"] for s in stats) / max(1, tokens),
        )

    def _column(self, out: pa.Table, name: str) -> list[Any]:
        values = out[name].to_pylist()
        return [values[i] for i in self._kept]
