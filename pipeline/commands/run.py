"""``run``: generates for every row of the input and publishes the output; starts a run or continues it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from pipeline import layout, stages
from pipeline.causes import described
from pipeline.cluster.executor import Executor, RayExecutor
from pipeline.cluster.resources import surplus_actors
from pipeline.commands.begin import Begun, begin, prepare_output, say
from pipeline.commands.run_checks import check_input, check_secrets, check_setup, check_writable, spooled
from pipeline.commands.run_fields import RunFields, lists_fields
from pipeline.commands.run_report import RunReport
from pipeline.commands.scheduled import ScheduledRun
from pipeline.commands.summary import RunResult, RunSummary, StartUp
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease, hold_lease
from pipeline.commit.ledger import Ledger
from pipeline.commit.manifest import Manifest
from pipeline.commit.publish import clean, publish
from pipeline.commit.repair import revoke
from pipeline.commit.retries import describe_retries
from pipeline.commit.revise import outdated, revise
from pipeline.commit.run_record import Origin
from pipeline.commit.usage import Usage
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, TooManyFailuresError
from pipeline.plan.input_check import changed_since_planned, check_committed_rows
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import REPAIR_FIRST, with_previous
from pipeline.plan.units import Work, read_tasks
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Progress, Stage
from pipeline.progress.views import Observer, ProgressMode, views
from pipeline.prompts.model_files import check_model, resolved_model
from pipeline.sources import check_apart
from pipeline.sources.corrected_rows import CorrectedRows
from pipeline.stopping import Stop, stop_budget
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.open import check_output_url, open_storage
from pipeline.storage.protocol import Storage
from pipeline.types import Totals

_LEAST_ROWS = 100
"""With fewer rows the share is not tested."""


def check_failures(done: Totals, most: float) -> None:
    """Raise TooManyFailuresError if, of 100 rows or more, more than the fraction ``most`` failed; with 1 never."""
    if most < 1 and done.rows >= _LEAST_ROWS and done.failed_rows > most * done.rows:
        raise TooManyFailuresError(
            f"{done.failed_rows} of the {done.rows} rows done so far failed, more than max_failed_fraction={most:g} "
            f"allows: {described(done.failed_by_cause)}. Committed rows stay. Correct the rows in their input file and "
            "run again with retry_failed; or finish the run with a larger max_failed_fraction."
        )


_LOG = logging.getLogger(__name__)


@lists_fields
def run(
    dataset: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
    **fields: Unpack[RunFields],
) -> RunResult:
    """Generate for every row of ``dataset`` and publish the results in ``output``.

    Called again with the same settings, it continues an interrupted run, includes new input files, and does nothing if
    everything is done.

    In the main thread, SIGTERM and Ctrl-C stop it: no new unit is begun, those in flight get ``stop_seconds``, and
    finished units are committed; then the signal has its usual effect (Ctrl-C raises KeyboardInterrupt). A second
    signal has it at once.

    Args:
        dataset: the input, see :class:`~pipeline.config.RunConfig`.
        output: the output folder.
        config: a whole configuration; the other arguments then override its fields.
        on_progress: called after each committed unit.
        progress: how the run is shown while it goes on. ``live``: a view in one place of a terminal; ``lines``: lines
            of ``key=value`` on standard error; ``notebook``; ``none``; ``auto`` takes one that fits. Or an observer of
            your own, an object with ``update(snapshot)`` and ``close(snapshot)``, which gets a
            :class:`~pipeline.progress.snapshot.Snapshot` four times a second, in another thread.
        progress_seconds: between two lines.
        **fields: the fields of :class:`~pipeline.config.RunConfig`, by name. Those that people set first are ``model``,
            ``sampling``, ``seed``, ``prompt_column``, ``messages_column``, ``prompt_template``, ``chat``,
            ``id_column``, ``limit``, ``actors``, ``mode`` and ``retry_failed``.

    Raises:
        ConfigError, SourceError, ResourceError: before anything is generated; the message has the remedy.
        FingerprintError: the output was begun with other settings; each difference is named.
        DamagedError: published files or state are lost; the message has the remedy.
        LeaseError: another run is writing to this output.
        LeaseLostError: another run took this output over.
        EngineDiedError, SinkError, TooManyFailuresError: during the run; committed rows stay, a re-run
            continues.
        StoppedError: a signal stopped the run, and its own handler did nothing.
    """
    given: dict[str, Any] = {**fields, **({} if dataset is None else {"input": dataset})}
    given |= {} if output is None else {"output": os.fspath(output)}
    config = RunConfig.from_mapping(given) if config is None else replace(config, **given)
    monitor = monitor_of(config, on_progress, progress, progress_seconds)
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    check_output_url(config.output, config.output_options)
    check_apart(config.input, config.output)
    check_secrets(config)
    check_model(config)  # a wrong one leaves no folder of the output
    check_writable(storage)
    stop = Stop(stop_budget(config.stop_seconds))
    with stop.on_signals(), monitor.shown():  # the view ends before the signal acts
        summary = run_on(RayExecutor(config, stop=stop), config, storage, monitor=monitor)
    return RunResult(summary=summary, storage_options=config.output_options)


def monitor_of(
    config: RunConfig,
    on_progress: Callable[[Progress], None] | None,
    progress: ProgressMode | Observer,
    progress_seconds: float,
) -> Monitor:
    """The monitor of a run; see :func:`run` for the arguments.

    Raises:
        ConfigError: ``progress`` or ``progress_seconds`` is none of those.
    """
    return Monitor(
        views(progress, progress_seconds), on_progress, output=config.output_name, model=config.model_name,
        price_per_hour=config.price_per_hour,
    )  # fmt: skip


def run_on(
    executor: Executor,
    config: RunConfig,
    storage: Storage,
    on_progress: Callable[[Progress], None] | None = None,
    monitor: Monitor | None = None,
) -> RunSummary:
    """:func:`run` with a given executor and storage; a ``monitor`` comes with its own listeners."""
    monitor = monitor or Monitor(on_progress=on_progress)
    check_setup(config)  # before ``mode="new"`` discards anything
    with hold_lease(storage) as lease:
        keep = () if config.mode != "new" else spooled(check_input(config, storage), storage)
        return run_held(executor, config, storage, lease, prepare_output(config, storage, lease, keep), monitor)


def run_held(
    executor: Executor,
    config: RunConfig,
    storage: Storage,
    lease: Lease,
    origin: Origin,
    monitor: Monitor,
    scheduled: ScheduledRun | None = None,
) -> RunSummary:
    """:func:`run_on` by the holder of the lease, on a prepared output; ``scheduled``: intake of a scheduled run."""
    monitor.begin(executor.state)
    with Index() as index:
        with executor.session():
            summary = _run_in_session(executor, config, storage, lease, origin, monitor, scheduled, index)
        if index.units.work_units:  # an actor may have staged a second result of a unit until the session ended
            lease.verify()
            clean(storage, Manifest.load(storage), index, lease)
        return summary


def _run_in_session(
    executor: Executor,
    config: RunConfig,
    storage: Storage,
    lease: Lease,
    origin: Origin,
    monitor: Monitor,
    scheduled: ScheduledRun | None,
    index: Index,
) -> RunSummary:
    """The part of :func:`run_held` within the executor's session."""
    with stages.stage("units planned"):
        begun = begin(config, storage, lease, index, origin, scheduled=scheduled)
    index.units.mark_work(retry_failed=config.retry_failed, only=begun.only)
    if (surplus := surplus_actors(config, index.units.work_units)) is not None and index.units.work_units:
        say([surplus])
    seconds, manifest = 0.0, begun.manifest
    usage = Usage(storage=storage, epoch=lease.epoch, since=origin.begun, used=executor.used)
    if index.units.work_units or not _is_published(begun, index):
        try:
            with RunReport(storage, lease, monitor, config, executor.traced).kept(index):
                seconds, manifest = _generate_and_publish(executor, begun, index, lease, monitor, usage.tick)
            begun.ledger.keep_snapshot()
        finally:
            usage.save()
    load = executor.state().load
    return replace(
        summary_of(begun, index, manifest, monitor.now(), seconds),
        start_up=StartUp.of(executor.starts),
        used=executor.used(),
        used_by_all=usage.total,
        gain=load.gain if load is not None else None,
        price_per_hour=config.price_per_hour,
        model_params=resolved_model(config).generation_defaults(config.generation_config).describe(config.sampling),
        scheduled=scheduled is not None,
    )


def summary_of(begun: Begun, index: Index, manifest: Manifest, session: Progress, seconds: float) -> RunSummary:
    """The summary of a run, or of a stage of a chain, without its cost; ``seconds``: of generating."""
    job, total = begun.job, index.records.totals()
    return RunSummary(
        output=job.storage.url,
        total=total,
        session=session.session,
        seconds=seconds,
        generating_seconds=session.seconds,
        publications=tuple(p.name for p in manifest.publications),
        format=job.config.output_format,
        unread=job.unread,
        retries=tuple(describe_retries(begun.retries, total.retried)),
        corrected_rows=bool(job.retry.rows),
    )


def _is_published(begun: Begun, index: Index) -> bool:
    """Whether all committed units are published, as of their latest attempt."""
    manifest, scheduled = begun.manifest, begun.scheduled
    if scheduled is not None and (scheduled.intake.gone or not len(index.units)):
        return not scheduled.intake.gone
    there = bool(manifest.publications) and next(index.units.unpublished(), None) is None
    return there and not outdated(manifest, index)


def _generate_and_publish(
    executor: Executor, begun: Begun, index: Index, lease: Lease, monitor: Monitor, tick: Callable[[], None]
) -> tuple[float, Manifest]:  # fmt: skip
    """Generate the marked units and publish them; units that turn out to be damaged are generated again, once.

    ``tick`` is called whenever units were committed.

    Returns:
        The wall-clock seconds of generating, and the manifest.
    """
    job, ledger, manifest = begun.job, begun.ledger, begun.manifest
    seconds = 0.0
    repeated: set[str] = set()
    while True:
        if index.units.work_units:
            seconds += _generate(executor, job, index, ledger, lease, monitor, tick)
        monitor.enter(Stage.PUBLISHING)
        check_inputs(job, index)
        try:
            with stages.stage("published"):
                return seconds, publish_committed(executor, begun, index, lease, manifest)
        except FoundDamageError as error:
            if job.retry.settings or job.retry.rows:
                raise DamagedError(str(error), REPAIR_FIRST) from error
            lease.verify()  # a successor may have published and removed the missing files
            manifest = Manifest.load(job.storage)  # includes revisions that were published before the damage was found
            units = revoke(error.damages, manifest, index, ledger)
            if repeated & units:
                raise DamagedError(
                    f"{job.storage.url}: what units {sorted(repeated & units)[:3]} had staged was damaged twice in "
                    f"this run, last {error.damages[0].fault}. Check the storage, and run again to continue."
                ) from error
            repeated |= units
            index.units.mark_work(retry_failed=False)


def check_inputs(job: Job, index: Index) -> None:
    """Check, before anything is published, that the input has not changed since it was planned and read.

    Raises:
        FingerprintError, SourceError: it is not.
    """
    if isinstance(job.source, CorrectedRows):
        return  # a copy in the output, with a checksum
    changed, gone = changed_since_planned(job.source)
    say(f"{path}: gone since it was read; its rows were checked when they were read" for path in gone)
    check_committed_rows(job, index, changed)


def _generate(
    executor: Executor,
    job: Job,
    index: Index,
    ledger: Ledger,
    lease: Lease,
    monitor: Monitor,
    tick: Callable[[], None],
) -> float:
    """Generate and commit the marked units; returns the wall-clock seconds."""
    units = index.units
    begin = time.monotonic()
    monitor.plan(units.rows, index.settled(), units.work_units)
    work = Work(
        tasks=read_tasks(with_previous(units.work(), index, derived_ids=job.rows.derived_ids)),
        units=units.work_units,
        unit_rows=units.largest_work,
        traced=job.config.report and job.config.report_traces > 0 and job.config.is_traceable,
    )
    for records in executor.run_units(job, work):
        lease.check()
        for record, before in zip(records, ledger.commit(records), strict=True):
            if record.redone:
                _LOG.warning("%s; all rows of its unit were generated again", record.redone)
            monitor.add(record, before)
        check_failures(monitor.now().done, job.config.max_failed_fraction)
        tick()
    missing = units.missing()
    if missing:
        raise AssertionError(f"the graph ended without an error, but units {missing} have no record")
    return time.monotonic() - begin


def publish_committed(
    executor: Executor, begun: Begun, index: Index, lease: Lease, manifest: Manifest
) -> Manifest:  # fmt: skip
    """Publish committed units that are not visible yet, as revisions and as a new publication; returns the manifest.

    Raises:
        FoundDamageError: staged or published objects differ from the committed ones.
    """
    job = begun.job
    for publication in outdated(manifest, index):
        manifest = revise(job.output, manifest, publication, index, lease=lease, write_parts=executor.write_parts)
    if begun.scheduled is not None:
        return begun.scheduled.publish(job.output, manifest, index, begun.ledger, lease, executor.write_parts)
    if manifest.publications and next(index.units.unpublished(), None) is None:
        return manifest
    return publish(job.output, manifest, index, lease=lease, write_parts=executor.write_parts)
