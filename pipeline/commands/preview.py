"""``preview``: runs the first rows on the model in this process and writes nothing."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import pyarrow as pa

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import resolve_job
from pipeline.plan.units import check_any_rows, plan_units
from pipeline.prompts.model_files import check_model
from pipeline.prompts.structures import check_structure
from pipeline.prompts.tokenize import prepare_table
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table


def preview(config: RunConfig, rows: int = 5) -> pa.Table:
    """Output rows of the first ``rows`` input rows, as a run would give them. Uses no Ray and no output folder.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    if rows < 1:
        raise ConfigError(f"rows={rows}: at least 1. Ask for more.")
    check_model(config)
    check_structure(config)
    config = replace(config, limit=rows)
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        job = resolve_job(config, source_of(config, storage), storage)
        units = plan_units(job.sliced, rows, "preview", rows)
        prepared = [(u, prepare_table(next(job.sliced.read([u.rows])), u, job)) for u in units]
        check_any_rows(len(prepared), config.input)
        engine = load_engine(job, config.num_threads)
        return pa.concat_tables([preview_table(job, engine, unit, table) for unit, table in prepared])
