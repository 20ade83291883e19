"""A few rows from all over the input, always the same ones."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.actors.tokenise import prepare_table
from pipeline.index import Index, PlannedUnits
from pipeline.job import Job
from pipeline.plan import plan_units
from pipeline.types import Unit

__all__ = ["prepared_sample", "sample_units"]


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
    """The number of rows of the input, and a sample of them as the generate actor gets them; None of an empty input."""
    with Index() as index:
        index.units.fill(plan_units(job.source, job.config.resolved_unit_rows(), "sample", job.config.limit))
        sample, total = sample_units(index.units, rows), index.units.rows
    tables = [prepare_table(next(job.source.read([u.rows])), u, job) for u in sample]
    return total, pa.concat_tables(tables) if tables else None
