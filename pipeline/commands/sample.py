"""A few rows from all over the input, always the same ones."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.codec import TemplateLimitError
from pipeline.commit.index import Index, PlannedUnits
from pipeline.plan.job import Job
from pipeline.plan.units import plan_units
from pipeline.prompts.tokenize import FAILURE_CLASS, prepare_table
from pipeline.types import Unit

__all__ = ["prepared_sample", "sample_units"]

_FEW = 3


def sample_units(units: PlannedUnits, rows: int) -> list[Unit]:
    """Beginnings of evenly spread units that have at most ``rows`` rows together."""
    every = len(units)
    count = min(every, rows)
    if not count:
        return []
    share, left = divmod(rows, count)
    sample = []
    for i in range(count):
        unit = units[i * every // count]
        take = min(share + (i < left), unit.rows.num_rows)
        sample.append(replace(unit, rows=replace(unit.rows, num_rows=take)))
    return sample


def prepared_sample(job: Job, rows: int) -> tuple[int, pa.Table | None]:
    """The number of rows of the input, and a sample of them as the generate actor gets them; None of an empty input.

    Where a template ends for none of the first rows, those are the sample: each of the others would take as long.
    """
    with Index() as index:
        index.units.fill(plan_units(job.source, job.config.resolved_unit_rows(), "sample", job.config.limit))
        sample, total = sample_units(index.units, rows), index.units.rows
    if not sample:
        return total, None
    first = sample[0].rows
    few = _prepared(replace(sample[0], rows=replace(first, num_rows=min(_FEW, first.num_rows))), job)
    if set(few[FAILURE_CLASS].to_pylist()) == {TemplateLimitError.__name__}:
        return total, few
    return total, pa.concat_tables([_prepared(unit, job) for unit in sample])


def _prepared(unit: Unit, job: Job) -> pa.Table:
    return prepare_table(next(job.source.read([unit.rows])), unit, job)
