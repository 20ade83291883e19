"""``calibrate``: finds the largest entropy threshold whose output still agrees with ``verified``, on a sample of rows.

``verified`` gives the autoregressive output. ``streaming`` and ``reference`` fill masks whose entropy is below a
threshold, and their output may differ. The threshold that a job can afford depends on its prompts, so it is measured;
so is whether it generates any faster than ``verified``, without which it gives something up for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from pipeline import stages
from pipeline.codec import tokens_per_forward
from pipeline.commands.calibration_sample import (
    PREFIX,
    Answers,
    CalibrationSample,
    Interval,
    answer_agreement,
    samples_to_show,
    token_agreement,
    wilson,
)
from pipeline.commands.run_checks import sampled
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, SourceError

GRID = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9, 1.4, 2.0, 3.0)
"""Thresholds in nats; tried in ascending order until two in a row fail."""
_FAILURES_TO_STOP = 2
_FASTER = 1.05
"""A threshold is advised if it generates so many times as fast as ``verified``: less may be chance."""
_TIMINGS = 3
"""Runs of ``verified`` and of the fastest threshold, in turns; the best of each counts."""
_PER_ROW = ("strategy", "entropy_threshold")


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """A model, its rows, and the floor of accuracy.

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
        if self.strategy not in (searched := ("streaming", "reference")):
            raise ConfigError(f"strategy={self.strategy!r}: one of {list(searched)}. Pick one of these.")
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
        tokens_per_second: generated tokens per second, over the whole sample, on this machine.
    """

    threshold: float | None
    agreement: Interval
    tokens_per_forward: float
    rows_per_token: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        threshold: the largest threshold that passed, if all smaller ones that were tried passed too; None if none did.
        advised: the fastest threshold up to that one, if it is faster than ``verified``; None advises ``verified``.
        verified: the verified output, which the others are compared with.
        trials: every threshold tried, ascending.
        samples: number of compared samples; failed rows have none.
    """

    threshold: float | None
    advised: float | None
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
    config = replace(
        config,
        columns=() if wanted.answer_column is None else (wanted.answer_column,),
        column_prefix=PREFIX,
        include_token_ids=True,
    )
    with sampled(config, wanted.rows) as (job, _, table):
        return _Search(CalibrationSample(job, table), wanted).run()


def _check(config: RunConfig, wanted: CalibrationConfig) -> None:
    own = sorted(set(_PER_ROW) & set(config.sampling_columns))
    if own:
        raise ConfigError(f"sampling_columns={own}: rows that set it themselves cannot be calibrated. Drop it here.")
    if config.sampling.logprobs:
        raise ConfigError(f"sampling.logprobs: {wanted.strategy} has none. Set it to false.")


def bounds(held: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The largest threshold below the first one that failed, and that one; None if there is none.

    A threshold that passed above one that failed is chance and does not count.
    """
    over = min((threshold for threshold, passed in held.items() if not passed), default=None)
    best = max((threshold for threshold in held if over is None or threshold < over), default=None)
    return best, over


class _Search:
    """Tries thresholds and keeps the results."""

    def __init__(self, sample: CalibrationSample, wanted: CalibrationConfig) -> None:
        self._sample, self._wanted = sample, wanted
        self._base, self._base_seconds = sample.generate(strategy="verified")
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
        """Try the grid in ascending order until thresholds fail, halve the interval, and compare with ``verified``."""
        verified = self._trial(None, self._base, self._base_seconds)
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
        verified, advised = self._compare(verified)
        return Calibration(
            threshold=self._best(),
            advised=advised,
            verified=verified,
            trials=[self._trials[t] for t in sorted(self._trials)],
            samples=len(self._kept),
        )

    def _compare(self, verified: Trial) -> tuple[Trial, float | None]:
        """Time ``verified`` and the fastest threshold that passed again; the first, and the other if it is faster."""
        best = self._best()
        passed = [] if best is None else [t for t in self._trials if t <= best]
        if not passed:
            return verified, None
        fastest = max(passed, key=lambda t: self._trials[t].tokens_per_second)
        for _ in range(_TIMINGS - 1):
            verified = _faster(verified, self._trial(None, *self._sample.generate(strategy="verified")))
            self._trials[fastest] = _faster(self._trials[fastest], self._try(fastest))
        ratio = self._trials[fastest].tokens_per_second / verified.tokens_per_second
        return verified, fastest if ratio >= _FASTER else None

    def _best(self) -> float | None:
        return bounds(self._held())[0]

    def _held(self) -> dict[float, bool]:
        return {threshold: self._holds(trial) for threshold, trial in self._trials.items()}

    def _passes(self, threshold: float) -> bool:
        self._trials[threshold] = self._try(threshold)
        return self._holds(self._trials[threshold])

    def _try(self, threshold: float) -> Trial:
        out, seconds = self._sample.generate(strategy=self._wanted.strategy, entropy_threshold=threshold)
        return self._trial(threshold, out, seconds)

    def _holds(self, trial: Trial) -> bool:
        found = trial.agreement.low if self._wanted.confident else trial.agreement.estimate
        return found >= self._wanted.floor

    def _trial(self, threshold: float | None, out: pa.Table, seconds: float) -> Trial:
        if self._answers is None:
            pairs = zip(self._column(self._base, "token_ids"), self._column(out, "token_ids"), strict=True)
            shares = [token_agreement(ours, other) for ours, other in pairs]
        else:
            shares = answer_agreement(self._answers, self._column(out, "text"))
        stats = self._column(out, "stats")
        tokens = sum(self._column(out, "completion_tokens"))
        trial = Trial(
            threshold=threshold,
            agreement=wilson(sum(shares) / len(shares), len(shares)),
            tokens_per_forward=tokens_per_forward(tokens, sum(s["decode_forwards"] for s in stats)),
            rows_per_token=sum(s["rows_forwarded"] for s in stats) / max(1, tokens),
            tokens_per_second=max(1, tokens) / seconds,
        )
        name = "verified" if threshold is None else f"{self._wanted.strategy} at {threshold:g}"
        agreement = f"agreement {trial.agreement.estimate:.4f}"
        stages.announce(f"{name}: {agreement}, {trial.tokens_per_second:.0f} tokens/s ({seconds:.1f} s)")
        return trial

    def _column(self, out: pa.Table, name: str) -> list[Any]:
        values = out[name].to_pylist()
        return [values[i] for i in self._kept]


def _faster(one: Trial, other: Trial) -> Trial:
    return one if one.tokens_per_second >= other.tokens_per_second else other
