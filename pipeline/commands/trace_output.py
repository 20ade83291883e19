"""Traces of some rows of an output, made afterwards: by any process that has the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.cluster.batch_stage import BatchSource
from pipeline.codec import CoreConfigError
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, SourceError
from pipeline.fingerprint import config_of
from pipeline.plan.job import Job, resolve_job
from pipeline.prompts.model_files import smoothing_of
from pipeline.storage.protocol import Storage
from pipeline.worker.load_engine import EngineLoader, load_engine
from pipeline.worker.row_traces import SPARE, Traced, rows_that_succeeded, trace_rows

_SETTINGS = ("adapter", "seed", "prompt_column", "messages_column", "token_ids_column", "prompt_template",
             "tools_column", "chat", "system_prompt", "on_long_prompt", "column_prefix", "include_token_ids", "dtype",
             "sampling_columns", "chat_template_kwargs", "chat_template_kwargs_column", "special_tokens_in_text",
             "generation_config", "sampling", "engine")  # fmt: skip
"""Settings of a record that rows are made with. Rows of an output have their ids, whatever column these came from."""


def trace_output(
    storage: Storage,
    state: RunState,
    tables: Iterable[pa.Table],
    model: str,
    *,
    most: int,
    storage_options: Mapping[str, Any] | None = None,
    load: EngineLoader = load_engine,
) -> Traced:
    """Decode the first rows of an output once more, step by step, in this process.

    Args:
        storage: the output.
        state: its run record.
        tables: its rows.
        model: the model that made them, wherever it is now.
        most: rows to trace.
        storage_options: keyword arguments of the model's file system.
        load: makes the engine.

    Raises:
        ConfigError: the model or its smoothing cannot be found, or another one made the output.
    """
    prefix: str = state.fingerprint["column_prefix"]
    rows = rows_that_succeeded(tables, most + SPARE, prefix)
    if rows is None:
        return Traced(reasons=("no row succeeded",))
    if "turns_column" in state.fingerprint:
        return Traced(reasons=("a conversation is not one generation",))
    try:
        job = _job(storage, state, model, storage_options)
    except SourceError as error:
        return Traced(reasons=(f"the output does not hold the columns that prompts are made of ({error})",))
    return trace_rows(job, load(job, None), rows, most)


def _job(storage: Storage, state: RunState, model: str, options: Mapping[str, Any] | None) -> Job:
    """The run as its record has it, over the columns of the output."""
    digest = str(state.fingerprint["model"]).rpartition("@")[2]
    settings = {name: value for name, value in state.fingerprint.items() if name.partition(".")[0] in _SETTINGS}
    try:
        config = config_of(settings, input=None, output=storage.url, model=model, storage_options=dict(options or {}))
    except (CoreConfigError, TypeError) as error:
        raise ConfigError(f"{storage.url}: made by a version with other settings ({error}). Use that one.") from error
    config = replace(config, engine=replace(config.engine, smoothing=smoothing_of(config, digest)))
    job = resolve_job(config, BatchSource(state.columns, state.fingerprint.get("input_format", "rows")), storage)
    return Job(**{**job.__dict__, "model_digest": digest})
