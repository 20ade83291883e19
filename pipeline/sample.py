"""A few rows from all over the input, always the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from pipeline.actors.tokenise import prepare_table
from pipeline.job import Job
from pipeline.plan import plan_units
from pipeline.types import Unit

__all__ = ["prepared_sample", "sample_units"]


def sample_units(units: Iterable[Unit], rows: int) -> list[Unit]:
    """Beginnings of evenly spread units that have at most ``rows`` rows together."""
    every = list(units)
    count = min(len(every), rows)
    if not count:
        return []
    chosen = [every[i * len(every) // count] for i in range(count)]
    share, left = divmod(rows, count)
    wanted = (share + (i < left) for i in range(count))
    return [
        replace(unit, rows=replace(unit.rows, num_rows=min(take, unit.rows.num_rows)))
        for unit, take in zip(chosen, wanted, strict=True)
    ]


def prepared_sample(job: Job, rows: int) -> tuple[int, pa.Table | None]:
    """The number of rows of the input, and a sample of them as the generate actor gets them; None of an empty input."""
    units = plan_units(job.source, job.config.resolved_unit_rows(), "sample", job.config.limit)
    total = sum(unit.rows.num_rows for unit in units)
    tables = [prepare_table(next(job.source.read([u.rows])), u, job) for u in sample_units(units, rows)]
    return total, pa.concat_tables(tables) if tables else None
