"""Judges a finished run row by row, and writes the verdicts as a table: ``samples/TASK.SETTING.parquet``."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.commands.output_table import OutputTable
from pipeline.evaluation.intervals import paired_difference
from pipeline.evaluation.results import Comparison, Counts
from pipeline.evaluation.sandbox import Limits, run_program
from pipeline.evaluation.task import Task, Verdict
from pipeline.storage.protocol import Storage

__all__ = ["SAMPLES", "compare", "judge_run", "samples_key"]

_ROWS_AT_ONCE = 256
"""Rows that are judged, and programs that run, before the next ones are read."""

SAMPLES = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("setting", pa.string(), nullable=False),
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("expected", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("text", pa.string()),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("decode_forwards", pa.int64()),
        pa.field("rows_forwarded", pa.int64()),
        pa.field("tokens_digest", pa.string()),
    ]
)
"""A row for each question, in input order. ``tokens_digest``: equal for equal tokens."""

_Sample = dict[str, Any]


def samples_key(task: str, setting: str) -> str:
    """Where the verdicts of a run are, inside the evaluation's output."""
    return f"samples/{task}.{setting}.parquet"


def judge_run(
    rows: OutputTable, storage: Storage, name: str, setting: str, task: Task, limits: Limits
) -> tuple[Counts, Mapping[str, Counts]]:
    """Judge every row of a run and write the verdicts; the counts of all, and of each group."""
    counts, groups = Counts(), dict[str, Counts]()
    with (
        storage.create(samples_key(name, setting)) as stream,
        pq.ParquetWriter(stream, SAMPLES) as writer,
        ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="programs") as pool,
    ):
        for part in _parts(rows):
            samples = _judged(part, task, limits, pool)
            for sample in samples:
                sample |= {"task": name, "setting": setting}
                counts = _counted(counts, sample)
                if sample["group"] is not None:
                    groups[sample["group"]] = _counted(groups.get(sample["group"], Counts()), sample)
            writer.write_table(pa.Table.from_pylist(samples, schema=SAMPLES))
    return counts, dict(sorted(groups.items()))


def _parts(rows: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    waiting = iter(rows)
    while part := list(itertools.islice(waiting, _ROWS_AT_ONCE)):
        yield part


def _judged(rows: Sequence[Mapping[str, Any]], task: Task, limits: Limits, pool: ThreadPoolExecutor) -> list[_Sample]:
    samples = [_sample(row, task) for row in rows]
    programs = [(place, sample.pop("program")) for place, sample in enumerate(samples) if "program" in sample]
    results = pool.map(lambda one: run_program(one[1], limits), programs)
    for (place, _), result in zip(programs, results, strict=True):
        outcome = "correct" if result.status == "passed" else "wrong"
        samples[place] |= {"outcome": outcome, "detail": f"{result.status}: {result.detail}".removesuffix(": ")}
    return samples


def _sample(row: Mapping[str, Any], task: Task) -> _Sample:
    """The verdict on one row; a row that the data set spoils is unjudged, and says why."""
    stats = row["stats"] or {}
    ids = row["token_ids"]
    sample: _Sample = {
        "row_id": row["row_id"],
        "group": _group(row, task),
        "answer": None,
        "expected": None,
        "detail": row["error"],
        "text": row["text"],
        "finish_reason": row["finish_reason"],
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "decode_forwards": stats.get("decode_forwards"),
        "rows_forwarded": stats.get("rows_forwarded"),
        "tokens_digest": None if ids is None else hashlib.blake2b(repr(list(ids)).encode(), digest_size=8).hexdigest(),
    }
    if empty := [name for name in task.asked_columns if row[name] is None]:
        return sample | {"outcome": "unjudged", "detail": f"the row has no value in {empty}, so it asks nothing"}
    if row["finish_reason"] == "error":
        return sample | {"outcome": "failed"}
    try:
        verdict: Verdict = task.judge(row, row["text"] or "")
    except Exception as error:  # a row with cells of another kind than the data set has
        return sample | {"outcome": "unjudged", "detail": f"{type(error).__name__}: {error}"}
    sample |= {"answer": verdict.answer, "expected": verdict.expected, "outcome": verdict.outcome}
    if verdict.program is not None:
        return sample | {"program": verdict.program}
    if verdict.expected is None:
        sample |= {"outcome": "unjudged", "detail": "no answer to compare with was found in the row"}
    return sample


def _group(row: Mapping[str, Any], task: Task) -> str | None:
    try:
        return None if task.group is None else task.group(row)
    except Exception:  # as above; the verdict says what is missing
        return None


def _counted(counts: Counts, sample: _Sample) -> Counts:
    return counts.plus(
        sample["outcome"],
        tokens=sample["completion_tokens"] or 0,
        forwards=sample["decode_forwards"] or 0,
        rows=sample["rows_forwarded"] or 0,
        truncated=sample["finish_reason"] == "length",
    )


def compare(storage: Storage, task: str, first: str, second: str, confidence: float) -> Comparison:
    """Two settings of one task, question by question: both tables are in input order, and are read side by side."""
    cells = {(a, b): 0 for a in (True, False) for b in (True, False)}
    equal = common = 0
    for one, other in zip(_verdicts(storage, task, first), _verdicts(storage, task, second), strict=True):
        if "unjudged" in (one["outcome"], other["outcome"]):
            continue
        cells[one["outcome"] == "correct", other["outcome"] == "correct"] += 1
        if one["tokens_digest"] is not None and other["tokens_digest"] is not None:
            common += 1
            equal += one["tokens_digest"] == other["tokens_digest"]
    difference = paired_difference(
        cells[True, True], cells[True, False], cells[False, True], cells[False, False], confidence
    )
    return Comparison(difference=difference, equal_tokens=equal, questions=common)


def _verdicts(storage: Storage, task: str, setting: str) -> Iterator[Mapping[str, Any]]:
    with storage.open(samples_key(task, setting)) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_ROWS_AT_ONCE, columns=["outcome", "tokens_digest"]):
            yield from batch.to_pylist()
