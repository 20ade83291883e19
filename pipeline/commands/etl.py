"""``etl``: processes what is new below a folder since the last success, and appends it to a table exactly once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.executor import Executor, RayExecutor
from pipeline.commands.begin import prepare_output
from pipeline.commands.checks import check_setup, check_writable
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.run import monitor_of, run_held
from pipeline.commands.scheduled import ScheduledRun, check_scheduled
from pipeline.commands.summary import RunSummary
from pipeline.commit.discard import is_discarding
from pipeline.commit.index import Index, Inputs, ProcessedFile
from pipeline.commit.lease import Lease, hold_lease
from pipeline.commit.ledger import read_ledger
from pipeline.commit.manifest import FENCE, Manifest
from pipeline.commit.recover import recover
from pipeline.commit.repair import find_published_damage
from pipeline.commit.run_record import Origin, RunState
from pipeline.commit.watermark import load_watermark
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, LeaseError
from pipeline.plan.intake import Intake, decide_intake
from pipeline.plan.job import named_columns
from pipeline.progress.lines import LINE_SECONDS
from pipeline.progress.monitor import Monitor
from pipeline.progress.observers import Observer
from pipeline.progress.snapshot import Progress
from pipeline.progress.views import ProgressMode
from pipeline.sources import FileSource, check_apart
from pipeline.sources.evolving import open_added_files
from pipeline.sources.finding import source_file
from pipeline.sources.formats import all_suffixes
from pipeline.sources.formats.parquet import ParquetSource
from pipeline.sources.listing import found_of, list_files
from pipeline.stopping import Stop, stop_budget
from pipeline.storage.concurrent import map_ahead
from pipeline.storage.open import check_output_url, open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import plain_name
from pipeline.types import ListedFile

__all__ = ["EtlResult", "describe_intake", "etl", "etl_on", "plan_etl"]

_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """The result of a scheduled run.

    Attributes:
        outcome: "done"; "nothing new"; or "busy", if another run is at work on the table.
        intake: what there was to do.
        summary: of the run; None if it had nothing to do.
    """

    outcome: Literal["done", "nothing new", "busy"]
    intake: Intake
    summary: RunSummary | None = None

    def describe(self) -> str:
        """A few lines for people."""
        if self.outcome == "busy":
            return "another run is at work on this table; nothing was done"
        text = describe_intake(self.intake)
        return text if self.summary is None else f"{text}\n{self.summary.describe()}"


def describe_intake(intake: Intake) -> str:
    """What there is to do, in one line."""
    parts = [f"{len(intake.new)} new files" if intake.new else "nothing new"]
    if intake.targets:
        parts.append(f"{len(intake.targets)} files again, in place of their old rows")
    if intake.removed:
        parts.append(f"rows of {len(intake.removed)} files removed")
    if kept := len(intake.changed) + len(intake.vanished) if not intake.gone else 0:
        parts.append(f"{kept} changed or vanished files ignored")
    if intake.settling:
        parts.append(f"{intake.settling} files are empty or too young, left for a later run")
    return "Input: " + "; ".join(parts)


def etl(
    config: EtlConfig,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
) -> EtlResult:
    """Process the files below ``config.run.input`` that the table does not hold yet, and append them exactly once.

    Which files it holds is part of the record by which rows become visible, so a run that is killed at any moment
    leaves either both or neither. With nothing to do it returns without Ray, and without a lease. SIGTERM and Ctrl-C
    stop it as they stop :func:`pipeline.run`, which has the other arguments too.

    Raises:
        ConfigError, SourceError, OutputError, ResourceError: before anything is generated; the message says what to do.
        LeaseError: another run was at work for all of ``config.wait``.
        EngineDiedError, SinkError, TooManyFailuresError, LeaseLostError: during the run; the next one continues.
        StoppedError: a signal stopped the run, and its own handler did nothing.
    """
    run = config.run
    monitor = monitor_of(run, on_progress, progress, progress_seconds)
    storage = open_storage(run.output, layout.SCRATCH, run.output_options)
    check_output_url(run.output, run.output_options)
    check_apart(run.input, run.output)
    stop = Stop(stop_budget(run.stop_seconds))
    with monitor.shown(), stop.on_signals():
        return etl_on(RayExecutor(run, stop=stop), config, storage, monitor=monitor)


def etl_on(
    executor: Executor,
    config: EtlConfig,
    storage: Storage,
    on_progress: Callable[[Progress], None] | None = None,
    monitor: Monitor | None = None,
) -> EtlResult:
    """:func:`etl` with a given executor and storage; a ``monitor`` comes with its own listeners."""
    monitor = monitor or Monitor(on_progress=on_progress)
    with Inputs() as inputs:
        origin = Origin.of(storage)
        manifest = _settled(config.run, storage, origin)
        intake = None if manifest is None else _intake(config, storage, origin, inputs, manifest)
    if intake is not None and intake.is_nothing:
        return EtlResult(outcome="nothing new", intake=intake)
    check_writable(storage)
    check_setup(config.run)
    try:
        with _lease(storage, config.wait) as lease, Inputs() as inputs:
            return _run(executor, config, storage, lease, inputs, monitor)
    except LeaseError:
        if config.wait is not None:
            raise
        return EtlResult(outcome="busy", intake=intake or Intake())


def plan_etl(config: EtlConfig) -> Intake:
    """What :func:`etl` would process now; changes nothing, and needs no lease.

    Raises:
        SourceError, OutputError: as :func:`etl`.
    """
    storage = open_storage(config.run.output, layout.SCRATCH, config.run.output_options)
    with Inputs() as inputs:
        origin = Origin.of(storage)
        return _intake(config, storage, origin, inputs, Manifest.load(storage, origin))


def _run(
    executor: Executor,
    config: EtlConfig,
    storage: Storage,
    lease: Lease,
    inputs: Inputs,
    monitor: Monitor,
) -> EtlResult:
    origin = prepare_output(config.run, storage, lease)
    manifest = recover(storage, lease, origin).manifest
    # Again, under the lease: another run may have done some of it in the meantime.
    intake = _intake(config, storage, origin, inputs, manifest)
    if intake.is_nothing:
        return EtlResult(outcome="nothing new", intake=intake)
    state = RunState.load(storage)
    scheduled = ScheduledRun(
        intake=intake,
        source=_source(config.run, intake, None if state is None else state.columns),
        inputs=inputs,
        revisions={p.position: p.revision for p in manifest.publications if p.position in intake.gone},
        columns=None if state is None else state.columns,
    )
    # What is to be done again is done as a further version of its files, see _again.
    run = replace(config.run, retry_failed=False, repair=False)
    summary = run_held(executor, run, storage, lease, origin, monitor, scheduled)
    return EtlResult(outcome="done", intake=intake, summary=summary)


def _source(run: RunConfig, intake: Intake, table: pa.Schema | None) -> FileSource:
    """The files of the intake; with rows to remove only, a source without files that has the table's columns."""
    if not intake.files and table is not None:
        own = [*table, *(pa.field(name, pa.string()) for name in named_columns(run) if name not in table.names)]
        return ParquetSource((), pa.schema(own), {}, ())
    found = [found_of(file) for file in intake.files]
    return open_added_files(
        plain_name(run.input), found, run.input_options, table=table, versions=intake.versions
    )  # fmt: skip


def _intake(
    config: EtlConfig, storage: Storage, origin: Origin, inputs: Inputs, manifest: Manifest
) -> Intake:  # fmt: skip
    """What there is to do, by the watermark and a listing of the input, which are entered in the index.

    Raises:
        DamagedError: the watermark cannot be read.
        OutputError: another command writes this output.
        SourceError: the input cannot be listed; or a file has changed or is gone, and that is an error.
    """
    check_scheduled(RunState.load(storage), storage)
    options, suffixes, now = config.run.input_options, all_suffixes(), time.time()
    load_watermark(storage, manifest, inputs)
    listed = list_files(config.run.input, options, config.within)
    inputs.list(file for file in listed if file.key.endswith(suffixes))

    def ready(file: ListedFile) -> bool:
        age = math.inf if file.modified is None else now - file.modified
        return file.size > 0 and age >= config.settle_seconds

    def same(files: Sequence[tuple[ListedFile, ProcessedFile]]) -> Iterator[bool]:
        digests = map_ahead(lambda pair: source_file(found_of(pair[0]), options).digest, files)
        return (digest == known.digest for digest, (_, known) in zip(digests, files, strict=True))

    redo = _again(config.run, storage, origin, manifest, inputs)
    return decide_intake(
        inputs, within=config.within, on_changed=config.on_changed, ready=ready, same=same, redo=redo
    )  # fmt: skip


def _again(
    config: RunConfig, storage: Storage, origin: Origin, manifest: Manifest, inputs: Inputs
) -> Collection[str]:  # fmt: skip
    """Keys of the files to do again.

    With ``retry_failed`` those of which a row has failed, with ``repair`` those of publications that are damaged.
    """
    keys: set[str] = set()
    if config.retry_failed:
        with Index() as index:
            read_ledger(storage, index.records, origin.begun)
            keys |= {own.file_key for record in index.records if record.failed_rows for own in record.stretches}
    if config.repair:
        damaged = {damage.key for damage in find_published_damage(storage, manifest, prove=True)}
        for publication in manifest.publications:
            if not damaged.isdisjoint(publication.keys):
                keys |= {file.key for file in inputs.at(publication.position)}
    return keys


def _settled(config: RunConfig, storage: Storage, origin: Origin) -> Manifest | None:
    """The manifest; None if there is something to do whatever the input is, or if it needs a run that corrects it."""
    if config.mode == "new" or config.repair or is_discarding(storage):
        return None
    try:
        manifest = Manifest.load(storage, origin)
    except DamagedError:
        return None
    following = manifest.next_number
    records = (key for key in storage.keys(layout.PUBLICATIONS) if layout.number_of(key)[0] >= following)
    undone = any(layout.number_of(key)[1] >= origin.begun and not _is_fence(storage, key) for key in records)
    return None if undone else manifest


def _is_fence(storage: Storage, key: str) -> bool:
    with suppress(FileNotFoundError):
        return storage.read(key).startswith(FENCE)
    return True


@contextmanager
def _lease(storage: Storage, wait: float | None) -> Iterator[Lease]:
    """The lease, once it is free.

    Raises:
        LeaseError: it is not, and was not for ``wait`` seconds.
    """
    deadline = time.monotonic() + (wait or 0.0)
    with ExitStack() as stack:
        while True:
            try:
                lease = stack.enter_context(hold_lease(storage))
                break
            except LeaseError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                threading.Event().wait(min(_POLL_SECONDS, left))
        yield lease
