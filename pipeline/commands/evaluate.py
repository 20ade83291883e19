"""``evaluate``: an ordinary run whose texts are scored against a column of expected answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout, stages
from pipeline.codec import explain
from pipeline.commands.read import read
from pipeline.commands.run import run
from pipeline.commands.scorers import OUTCOMES, SCORERS, Counts, Difference
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.snapshot import Progress
from pipeline.progress.views import Observer, ProgressMode
from pipeline.sources import source_of
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage

SCORES, RESULT = f"{layout.EVALUATION}/scores.parquet", f"{layout.EVALUATION}/evaluation.json"
_ROWS_AT_ONCE = 4096
_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("expected", pa.string()),
    ]
)
"""The scores: one row for each output row, in the same order."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        summary: of the run.
        counts: questions by outcome.
        scorer: its name.
        difference: from the baseline, question by question; None without a baseline.
        confidence: of the intervals that :meth:`describe` shows.
    """

    summary: RunSummary
    counts: Counts
    scorer: str
    difference: Difference | None = None
    confidence: float = 0.95

    def describe(self) -> str:
        """The result in two lines, or three with a baseline."""
        found = self.counts.accuracy(self.confidence)
        level = f"{self.confidence:.0%} confidence"
        share = "no question has an expected answer" if found is None else (
            f"{found.value:.2%} ({level}: {found.low:.2%} to {found.high:.2%}) of {self.counts.judged} questions"
        )  # fmt: skip
        lines = [f"accuracy ({self.scorer}): {share}"]
        lines += [", ".join(f"{self.counts.outcomes[name]} {name}" for name in OUTCOMES)]
        if self.difference is not None and (interval := self.difference.interval(self.confidence)) is not None:
            value, low, high = (f"{100 * one:+.2f}" for one in (interval.value, interval.low, interval.high))
            lines += [
                f"difference from the baseline: {value} points ({level}: {low} to {high}); "
                f"{self.difference.only_this} correct only here, {self.difference.only_baseline} only there"
            ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON takes them."""
        accuracy, difference = self.counts.accuracy(self.confidence), self.difference
        interval = None if difference is None else difference.interval(self.confidence)
        return {
            "scorer": self.scorer,
            "confidence": self.confidence,
            "outcomes": dict(self.counts.outcomes),
            "accuracy": accuracy and dataclasses.asdict(accuracy),
            "difference": difference and {
                **dataclasses.asdict(difference), "interval": interval and dataclasses.asdict(interval),
            },
        }  # fmt: skip


def evaluate(
    config: RunConfig | Mapping[str, Any],
    *,
    answer_column: str,
    scorer: str,
    baseline: str | None = None,
    confidence: float = 0.95,
    on_progress: Callable[[Progress], None] | None = None,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
) -> Evaluation:
    """Run a job, score its texts, and write scores and figures to ``__wedlm/evaluation/`` of the output.

    Called again, it continues an interrupted run, generates nothing of a finished one, and scores it again.

    Args:
        config: of the run, whose output is an ordinary one.
        answer_column: column of the input with the expected answers; rows with a null there are not judged.
        scorer: "exact" (equal texts), "numeric" (equal last numbers) or "choice" (equal letters).
        baseline: output of an evaluation of the same input, to compare with question by question.
        confidence: of the intervals, between 0 and 1.
        on_progress: this and the next two: see :func:`pipeline.run`.
        progress: how the run is shown.
        progress_seconds: between two lines.

    Raises:
        ConfigError: an unknown scorer or column, a confidence out of range, or several samples of a prompt.
        OutputError: the baseline has no scores, or scores of other rows or by another scorer.
        PipelineError: as :func:`pipeline.run`.
    """
    if not isinstance(config, RunConfig):
        config = RunConfig.from_mapping(config)
    config = _checked(config, answer_column, scorer, confidence)
    before = None if baseline is None else _opened(baseline, config.output_options)
    summary = run(config=config, on_progress=on_progress, progress=progress, progress_seconds=progress_seconds).summary
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    with stages.stage("texts scored"):
        counts = _scored(config, storage, answer_column, scorer)
    difference = None if before is None else _difference(before, storage)
    found = Evaluation(
        summary=summary, counts=counts, scorer=scorer, difference=difference, confidence=confidence
    )  # fmt: skip
    storage.put(RESULT, (json.dumps(found.as_dict(), indent=2) + "\n").encode())
    return found


def _checked(config: RunConfig, answer_column: str, scorer: str, confidence: float) -> RunConfig:
    """The run's configuration, whose output has the column of answers; mistakes are found before anything runs."""
    if scorer not in SCORERS:
        raise ConfigError(explain("scorer", scorer, f"not one of {', '.join(SCORERS)}", "Name one of these."))
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ConfigError(explain("confidence", confidence, "must be a number between 0 and 1", "Use 0.95."))
    if config.sampling.n > 1:
        rule = "intervals need independent questions, and samples of one question are not independent"
        raise ConfigError(explain("sampling.n", config.sampling.n, rule, "Use n=1."))
    if config.columns is not None and answer_column not in config.columns:
        config = dataclasses.replace(config, columns=(*config.columns, answer_column))
    names = source_of(config, open_storage(config.output, layout.SCRATCH, config.output_options)).schema.names
    if answer_column not in names:
        rule = f"the input has no such column. It has {', '.join(names)}"
        raise ConfigError(explain("answer_column", answer_column, rule, "Name one of these."))
    return config


def _scored(config: RunConfig, storage: Storage, answer_column: str, scorer: str) -> Counts:
    """Score every row, a bounded number of rows in memory, and write the scores."""
    found: Counter[str] = Counter()
    rows = iter(read(config.output, storage_options=config.output_options))
    with storage.create(SCORES) as stream, pq.ParquetWriter(stream, _SCHEMA) as writer:
        while part := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            scores = [_score(row, answer_column, scorer, config.column_prefix) for row in part]
            found.update(score["outcome"] for score in scores)
            writer.write_table(pa.Table.from_pylist(scores, schema=_SCHEMA))
    return Counts(outcomes={name: found[name] for name in OUTCOMES})


def _score(row: Mapping[str, Any], answer_column: str, scorer: str, prefix: str) -> dict[str, Any]:
    score = {name: row[f"{prefix}{name}"] for name in ("row_id", "sample_index")}
    text, answer = row[f"{prefix}text"], row[answer_column]
    if answer is None:
        return score | {"outcome": "unjudged"}
    verdict = SCORERS[scorer](text or "", str(answer))
    if row[f"{prefix}finish_reason"] == "error" and verdict.outcome != "unjudged":
        verdict = verdict._replace(outcome="failed", answer=None)
    return score | verdict._asdict()


def _opened(baseline: str, options: Mapping[str, Any]) -> Storage:
    storage = open_storage(baseline, layout.SCRATCH, options)
    if not storage.exists(SCORES):
        raise OutputError(f"{storage.url}: it has no scores. Evaluate that output first, with the same input.")
    return storage


def _difference(baseline: Storage, this: Storage) -> Difference:
    """Compare two outputs question by question; both tables of scores are in the order of the input."""
    cells: Counter[tuple[bool, bool]] = Counter()
    for one, other in itertools.zip_longest(_outcomes(baseline), _outcomes(this)):
        if one is None or other is None or one[1:] != other[1:]:
            rule = "its scores are of other rows, or by another scorer"
            raise OutputError(f"{baseline.url}: {rule}. Compare evaluations of one input by one scorer.")
        if "unjudged" not in (one[0], other[0]):
            cells[one[0] == "correct", other[0] == "correct"] += 1
    return Difference(
        both=cells[True, True], only_baseline=cells[True, False],
        only_this=cells[False, True], neither=cells[False, False],
    )  # fmt: skip


def _outcomes(storage: Storage) -> Iterator[tuple[str, str, str | None]]:
    """Outcome, row id and expected answer of every row."""
    with storage.open(SCORES) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_ROWS_AT_ONCE):
            yield from zip(*(batch[name].to_pylist() for name in ("outcome", "row_id", "expected")), strict=True)
