"""``run``: from a configuration to a published output, starting afresh or continuing."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipeline import layout
from pipeline.actors.model import check_model, model_digest
from pipeline.config import RunConfig
from pipeline.discarding import discard, finish_discard
from pipeline.errors import OutputError
from pipeline.failures import FailureLimit
from pipeline.graph import Executor, RayExecutor
from pipeline.index import Index, PlannedUnits
from pipeline.job import Job, resolve_job
from pipeline.lease import Lease, hold_lease
from pipeline.ledger import Ledger
from pipeline.plan import Work, plan_units, read_tasks
from pipeline.progress import Progress, ProgressTracker
from pipeline.publications import Manifest
from pipeline.publish import publish, recover
from pipeline.results import RunResult, RunSummary
from pipeline.retrying import with_previous
from pipeline.revising import outdated, revise
from pipeline.sinks import FORMATS
from pipeline.sources import check_apart, source_of
from pipeline.state import RunState
from pipeline.storage import Storage, open_storage
from pipeline.unique_ids import check_unique_ids

__all__ = ["new_state", "run", "run_on"]


def run(
    dataset: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **fields: Any,
) -> RunResult:
    """Generate for every row of ``dataset`` and publish the results in ``output``.

    Called again with the same settings it continues what was interrupted, takes up new input files, and
    does nothing where everything is done.

    Args:
        dataset: the input, see :class:`~pipeline.config.RunConfig`.
        output: the output folder.
        config: a whole configuration; the other arguments then override its fields.
        on_progress: called after each committed unit.
        **fields: further fields of ``RunConfig``: model, sampling, actors, ...

    Raises:
        ConfigError, SourceError, ResourceError: before anything is generated; the message says what to do.
        FingerprintError: the output was begun with other settings; each difference is named.
        LeaseError: another run is writing to this output.
        EngineDiedError, SinkError, TooManyFailuresError: during the run; what is committed stays, a re-run
            continues.
    """
    given = {**fields, **({} if dataset is None else {"input": dataset})}
    given |= {} if output is None else {"output": os.fspath(output)}
    config = RunConfig.from_mapping(given) if config is None else replace(config, **given)
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    check_apart(config.input, config.output)
    summary = run_on(RayExecutor(config), config, storage, on_progress or (lambda progress: None))
    return RunResult(summary=summary, storage_options=config.output_options)


def run_on(
    executor: Executor, config: RunConfig, storage: Storage, on_progress: Callable[[Progress], None]
) -> RunSummary:  # fmt: skip
    """:func:`run` with the means of execution and the storage given."""
    with hold_lease(storage) as lease:
        return _run(executor, config, storage, lease, on_progress)


def _run(
    executor: Executor,
    config: RunConfig,
    storage: Storage,
    lease: Lease,
    on_progress: Callable[[Progress], None],
) -> RunSummary:
    _prepare_output(config, storage)
    check_model(config)  # a model that is not there ends the run here, not in an actor
    with Index() as index:
        manifest = recover(storage, index.published, lease)
        job = resolve_job(config, source_of(config, storage), storage)
        _plan(job, index.units)
        if config.id_column is not None:
            check_unique_ids(job.source, index.units, config.id_column)
        ledger = Ledger.load(storage, index.records)
        index.units.mark_work(retry_failed=config.retry_failed)
        work = index.units.work_units
        session, seconds = Progress.nothing(), 0.0
        if work or not _is_published(index, manifest):
            with executor.session():
                if work:
                    session, seconds = _generate(executor, job, index, ledger, lease, on_progress)
                manifest = _publish(executor, job, index, lease, manifest)
        return RunSummary(
            output=storage.url,
            total=index.records.totals(),
            session=session.session,
            seconds=seconds,
            generating_seconds=session.seconds,
            publications=tuple(p.name for p in manifest.publications),
        )


def _is_published(index: Index, manifest: Manifest) -> bool:
    """Whether readers see all of the ledger."""
    there = bool(manifest.publications) and next(index.units.unpublished(), None) is None
    return there and not outdated(manifest, index)


def _generate(
    executor: Executor,
    job: Job,
    index: Index,
    ledger: Ledger,
    lease: Lease,
    on_progress: Callable[[Progress], None],
) -> tuple[Progress, float]:
    """Do the work that is marked; this session's last progress, and its wall-clock seconds."""
    units = index.units
    begin = time.monotonic()
    tracker = ProgressTracker(units.rows, index.settled(), on_progress)
    limit = FailureLimit(job.config.max_failed_fraction)
    work = Work(
        tasks=read_tasks(with_previous(units.work(), index)), units=units.work_units, unit_rows=units.largest_work
    )
    for records in executor.run_units(job, work):
        lease.check()
        for record, before in zip(records, ledger.commit(records), strict=True):
            tracker.add(record, before)
        limit.check(tracker.now().done)
    missing = units.missing()
    if missing:
        raise AssertionError(f"the graph ended without an error, but units {missing} have no record")
    return tracker.now(), time.monotonic() - begin


def _publish(executor: Executor, job: Job, index: Index, lease: Lease, manifest: Manifest) -> Manifest:
    for publication in outdated(manifest, index):
        manifest = revise(job.storage, manifest, publication, index, lease=lease, write_parts=executor.write_parts)
    if manifest.publications and next(index.units.unpublished(), None) is None:
        return manifest
    return publish(
        job.storage,
        manifest,
        index,
        lease=lease,
        schema=job.schema,
        dead_schema=job.dead_schema,
        format=FORMATS[job.config.output_format],
        target_bytes=job.config.target_part_bytes,
        write_parts=executor.write_parts,
    )


def new_state(job: Job) -> RunState:
    """The record of a run that begins now."""
    config = job.config
    return RunState(
        fingerprint={**config.fingerprint_fields(), "model": f"{config.model}@{model_digest(config)}"},
        unit_rows=config.resolved_unit_rows(),
        files={file.key: file.digest for file in job.source.files},
        columns=job.columns,
    )


def _plan(job: Job, units: PlannedUnits) -> None:
    """Begin a run, or check that this one continues what is there; and its units."""
    config, new = job.config, new_state(job)
    old = RunState.load(job.storage)
    state = new if old is None else old.continued_by(new, job.storage.url)
    units.fill(plan_units(job.source, state.unit_rows, state.fingerprint_hash, config.limit))
    state = replace(state, units=len(units), rows=units.rows)
    if state != old:
        state.save(job.storage)


def _prepare_output(config: RunConfig, storage: Storage) -> None:
    """Apply ``mode``; refuse a folder with someone else's tables, which readers would mix with ours."""
    finish_discard(storage)
    begun = storage.exists(layout.RUN)
    if begun and config.mode == "error_if_exists":
        raise OutputError(f"{storage.url}: a run was begun there. Use mode='resume' to continue it, or another folder.")
    if config.mode == "new":
        discard(storage)
    elif not begun:
        suffix = FORMATS[config.output_format].suffix
        there = itertools.chain.from_iterable(storage.walk("."))
        foreign = next((key for key in there if key.endswith(suffix) and layout.STATE not in key), None)
        if foreign is not None:
            raise OutputError(
                f"{storage.url}: holds {foreign!r}, which no run of this package wrote. Write to an empty folder."
            )
