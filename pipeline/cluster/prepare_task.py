"""Task body: units of the source become envelopes with their prepared rows; a row that kills the task is left out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from pipeline.cluster import envelope
from pipeline.codec import Failure
from pipeline.errors import EngineDiedError
from pipeline.plan.job import Job
from pipeline.prompts.prefix_histogram import sketch_of
from pipeline.prompts.tokenize import PROMPT_IDS, failed_table, prepare_rows, prepare_table
from pipeline.types import Unit
from pipeline.worker.row_isolation import RowWatch, TallyLike

__all__ = ["prepare_units", "read_sketch"]


def prepare_units(units: Sequence[Unit], job: Job, tally: TallyLike) -> Iterator[pa.Table]:
    """Two blocks for each unit, in order: the sketch of its prompts, and its envelope.

    Raises:
        EngineDiedError: processes died again and again while they were reading these units.
    """
    process, task = uuid.uuid4().hex, f"read.{units[0].unit_id}"
    verdict = tally.start(task)
    if not verdict.go_on:
        raise EngineDiedError(
            f"{verdict.deaths} processes in a row died while they were reading {_place(units[0], job)} and what follows"
        )
    # Row by row is slow, so rows are only watched where a process that was reading these units has died.
    watch = RowWatch(tally, process, alone=True) if verdict.deaths else None
    tables = job.source.read([unit.rows for unit in units])
    for unit, table in zip(units, tables, strict=True):
        prepared = prepare_table(table, unit, job, None if watch is None else partial(_watched, watch))
        yield _sketch(prepared, job)
        yield envelope.pack(prepared)
    tally.leave(task)


def _watched(watch: RowWatch, rows: pa.Table, numbers: Sequence[int], unit: Unit, job: Job) -> pa.Table:
    """:func:`prepare_rows`, leaving out the rows that kill."""

    def prepare(some: Sequence[int]) -> list[pa.Table]:
        own = [numbers[i] for i in some]
        done = prepare_rows(rows.take(pa.array(some, pa.int64())), own, unit, job)
        return [done.slice(i, 1) for i in range(len(own))]

    def quarantine(row: int, deaths: int) -> pa.Table:
        return failed_table(rows.slice(row, 1), [numbers[row]], unit, job, _quarantined(deaths))

    run = f"read.{unit.unit_id}"
    if not rows.num_rows:
        return prepare_rows(rows, [], unit, job)
    prepared = watch.run(run, rows.num_rows, prepare, quarantine)
    watch.finish(run)
    return pa.concat_tables(prepared).combine_chunks()


def _quarantined(deaths: int) -> Failure:
    return Failure(
        error_class="QuarantinedRow",
        message=f"the process died {deaths} times while the prompt of this row alone was being rendered and tokenised, "
        "and the row was then left out. Mend the row, and run with retry_failed.",
    )


def _place(unit: Unit, job: Job) -> str:
    return f"{job.source.files[unit.rows.file].path} at row {unit.rows.first_row}"


def _sketch(prepared: pa.Table, job: Job) -> pa.Table:
    """A block that :func:`read_sketch` reads; with one actor there is no choice, and nothing to tell."""
    config = job.config
    sketch: Mapping[int, int] = {}
    if config.actors > 1 and config.engine.prefix_caching:
        prompts = (ids for ids in prepared[PROMPT_IDS].to_pylist() if ids)
        sketch = sketch_of(prompts, config.engine.page_size)
    columns = {"prefix": list(sketch), "tokens": list(sketch.values())}
    return pa.table({name: pa.array([values], pa.list_(pa.int64())) for name, values in columns.items()})


def read_sketch(block: pa.Table) -> dict[int, int]:
    """Of a unit: prefix -> tokens."""
    return dict(zip(block["prefix"][0].as_py(), block["tokens"][0].as_py(), strict=True))
