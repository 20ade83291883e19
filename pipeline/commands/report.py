"""``report``: one page about an output, from its records; never disturbs a run that writes to it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.batch_stage import BatchSource
from pipeline.codec import CoreConfigError, redact
from pipeline.commands.published_output import dropped_by_reason
from pipeline.commands.run_report import aggregated, facts_of, published_aggregate, put_traces, trace_note
from pipeline.commit.committed_rows import ROWS, committed_tables
from pipeline.commit.index import Index
from pipeline.commit.ledger import read_ledger
from pipeline.commit.lists import index_publication
from pipeline.commit.manifest import Manifest
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, OutputError, SinkError, SourceError
from pipeline.fingerprint import config_of
from pipeline.plan.job import Job, resolve_job
from pipeline.prompts.model_files import smoothing_of
from pipeline.reporting.comparison import Comparison, compared
from pipeline.reporting.facts import Facts
from pipeline.reporting.page import render
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url, join, lies_inside
from pipeline.types import Totals
from pipeline.worker.load_engine import EngineLoader, load_engine
from pipeline.worker.row_traces import SPARE, Traced, rows_that_succeeded, trace_rows

_TRACES = 6


def report(
    output: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Write the report of an output: one HTML file that loads nothing else.

    Args:
        output: the folder or URL of a run, also of one that was interrupted or still runs.
        to: a local file; None writes it to ``__wedlm/report.html`` of the output.
        model: the model that made the output, for the player: this process reads all rows and decodes some of them once
            more. None shows the rows that the last run decoded again.
        storage_options: keyword arguments of the URL's file system.

    Returns:
        Where the page is.

    Raises:
        ConfigError: ``model`` cannot be loaded, or did not make the output; or a filter made it.
        DamagedError: the state or a published file cannot be read.
        OutputError: no run was begun there, or ``to`` cannot be written.
    """
    if to is not None:
        _check_target(to, output)
    storage = open_storage(output, layout.SCRATCH, storage_options)
    facts = gather(storage)
    if model is not None:
        facts = _with_traces(storage, facts, model, storage_options)
    page = render(facts)
    if to is None:
        storage.put(layout.REPORT_PAGE, page.encode())
        return redact(join(storage.url, layout.REPORT_PAGE))
    path = Path(to)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: the report cannot be written there ({error}). Choose another file.") from error
    return str(path)


def compare(
    output: str | os.PathLike[str],
    other: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare two outputs: settings, speed and quality. Nothing is written.

    Args:
        output: the folder or URL of a run.
        other: that of another run.
        storage_options: keyword arguments of the URLs' file systems.

    Returns:
        The values of both; ``describe()`` gives them as a table of text.

    Raises:
        DamagedError, OutputError: see :func:`report`.
    """
    return compared(*(gather(open_storage(own, layout.SCRATCH, storage_options)) for own in (output, other)))


def _check_target(to: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Refuse a place that is no local file, or where readers of the output would take the page for rows.

    Raises:
        OutputError: it is such a place.
    """
    place = redact(os.fspath(to))
    if is_url(to):
        raise OutputError(
            f"to={place!r}: a URL, but the page is written to a local file. Write it to one, and copy it."
        )
    if lies_inside(to, output):
        raise OutputError(
            f"to={place!r}: lies inside {redact(os.fspath(output))!r}, whose readers would take it for rows. Leave it "
            f"out for {layout.REPORT_PAGE} of the output, or write to a file outside of it."
        )


def _with_traces(storage: Storage, facts: Facts, model: str, options: Mapping[str, Any] | None) -> Facts:
    """The facts with traces that are made now. They are kept in the output too, if it can be written."""
    state = RunState.load(storage)
    assert state is not None, "facts are of a run"
    if state.derived is not None:
        raise ConfigError(
            f"model={model!r}: the rows of {storage.url} were made by `{state.derived.command}`, and are not decoded "
            f"once more. Leave the model out, or make the report of {state.derived.source}."
        )
    traced = trace_output(
        storage, state, committed_tables(storage, ROWS, state, state.schema), model, most=_TRACES,
        storage_options=options,
    )  # fmt: skip
    if traced.traces:
        last = max((layout.epoch_of(key) for key in storage.keys(f"{layout.REPORT}/traces")), default=state.begun)
        with suppress(OSError, SinkError):
            put_traces(storage, last, traced)
    return replace(facts, traces=traced.traces, trace_note=trace_note(traced))


def gather(storage: Storage) -> Facts:
    """The facts of an output.

    Raises:
        DamagedError, OutputError: see :func:`report`.
    """
    state = RunState.load_begun(storage)
    manifest = Manifest.load(storage)
    if state.derived is not None:
        return _facts_of_filtered(storage, state, manifest)
    with Index() as index:
        read_ledger(storage, index.records, state.begun)
        for publication in manifest.publications:
            index_publication(storage, publication, index.published)
        totals = index.records.totals()
        is_published = next(index.records.unpublished(), None) is None and not index.published.outdated()
    notes = []
    if is_published:
        aggregate, _ = published_aggregate(storage, manifest, state)
    else:
        aggregate = aggregated(committed_tables(storage, ROWS, state, state.schema), state)
        notes.append("Not all of the committed rows are published yet; the charts are about all that are committed.")
    return facts_of(storage, state, totals, aggregate, notes)


def _facts_of_filtered(storage: Storage, state: RunState, manifest: Manifest) -> Facts:
    """The facts of a filter's output, which has no ledger: they come from its publication."""
    assert state.derived is not None
    aggregate, _ = published_aggregate(storage, manifest, state)
    dropped = dropped_by_reason(storage, manifest, state.fingerprint["column_prefix"])
    note = f"The rows that `{state.derived.command}` kept of {redact(state.derived.source)}."
    if dropped:
        note += " Dropped: " + ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) + "."
    done = bool(manifest.publications)
    return replace(
        facts_of(storage, state, Totals(), aggregate, [note]),
        state=f"{aggregate.rows:,} of {state.rows:,} rows kept" if done else "nothing is published yet",
        complete=done,
        dropped=sum(dropped.values()),
    )


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
