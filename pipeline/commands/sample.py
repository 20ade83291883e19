"""Samples rows that are spread over the whole input; always the same ones."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.codec import TemplateLimitError
from pipeline.commit.index import PlannedUnits
from pipeline.plan.job import Job
from pipeline.prompts.tokenize import FAILURE_CLASS, prepare_table
from pipeline.types import Unit

__all__ = ["prepared_sample", "sample_units"]

_FEW = 3


def sample_units(units: PlannedUnits, rows: int, spread: int | None = None) -> list[Unit]:
    """The first rows of evenly spread units (``spread`` at most), ``rows`` rows in all at most."""
    every = len(units)
    count = min(every, rows, spread or rows)
    if not count:
        return []
    share, left = divmod(rows, count)
    sample = []
    for i in range(count):
        unit = units[i * every // count]
        take = min(share + (i < left), unit.rows.num_rows)
        sample.append(replace(unit, rows=replace(unit.rows, num_rows=take)))
    return sample


def prepared_sample(job: Job, units: PlannedUnits, rows: int, spread: int | None = None) -> pa.Table:
    """A sample of the input, prepared as for a generate actor.

    If the template exceeds its limits for all of the first rows, only those are the sample: every other row would take
    as long.

    Args:
        job: the resolved run.
        units: all units of its input; one at least.
        rows: number of rows at most.
        spread: number of units at most, from which they are taken.
    """
    sample = sample_units(units, rows, spread)
    first = sample[0].rows
    few = _prepared(replace(sample[0], rows=replace(first, num_rows=min(_FEW, first.num_rows))), job)
    if set(few[FAILURE_CLASS].to_pylist()) == {TemplateLimitError.__name__}:
        return few
    return pa.concat_tables([_prepared(unit, job) for unit in sample])


def _prepared(unit: Unit, job: Job) -> pa.Table:
    return prepare_table(next(job.sliced.read([unit.rows])), unit, job)
