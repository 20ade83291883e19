"""``preview``: runs the first rows on the model in this process and writes nothing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.commands.run_checks import job_without_output
from pipeline.config import RunConfig
from pipeline.plan.units import check_any_rows, plan_units
from pipeline.prompts.tokenize import prepare_table
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table


def preview(config: RunConfig, rows: int = 5) -> pa.Table:
    """Output rows of the first ``rows`` input rows, as a run would give them. Uses no Ray and no output folder.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    config = replace(config, limit=max(1, rows))  # rows below 1 are refused below, by their name
    with job_without_output(config, rows) as job:
        units = plan_units(job.sliced, rows, "preview", rows)
        prepared = [(u, prepare_table(next(job.sliced.read([u.rows])), u, job)) for u in units]
        check_any_rows(len(prepared), config.input)
        engine = load_engine(job, config.num_threads)
        return pa.concat_tables([preview_table(job, engine, unit, table) for unit, table in prepared])
