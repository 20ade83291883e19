"""``etl``: processes files that are new since the last success, and appends their rows to a table exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline import layout
from pipeline.cluster.executor import Executor, RayExecutor
from pipeline.commands.begin import prepare_output
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.etl_intake import (
    check_new_table,
    compare_input,
    draw,
    is_listed,
    repair_records,
    source_of_intake,
)
from pipeline.commands.run import monitor_of, run_held
from pipeline.commands.run_checks import check_setup, check_writable
from pipeline.commands.scheduled import ScheduledRun
from pipeline.commands.summary import RunSummary
from pipeline.commit.index import Inputs
from pipeline.commit.lease import Lease, hold_lease
from pipeline.commit.manifest import FENCE, Manifest
from pipeline.commit.recover import is_discarding, recover
from pipeline.commit.run_record import Origin, RunState
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, LeaseError
from pipeline.plan.intake import Intake, IntakeCounts
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Progress
from pipeline.progress.views import Observer, ProgressMode
from pipeline.sources import check_apart
from pipeline.stopping import Stop, stop_budget
from pipeline.storage.open import check_output_url, open_storage
from pipeline.storage.protocol import Storage

_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """The result of a scheduled run.

    Attributes:
        outcome: "done"; "nothing new"; or "busy", if another run is at work on the table.
        intake: files to process, replace and remove; of a run in rounds, those of the first.
        counts: the numbers of files, over all rounds.
        summary: of the run; None if it had nothing to do.
    """

    outcome: Literal["done", "nothing new", "busy"]
    intake: Intake
    counts: IntakeCounts = field(default_factory=IntakeCounts)
    summary: RunSummary | None = None

    def describe(self) -> str:
        """A few lines for people."""
        if self.outcome == "busy":
            return "another run is at work on this table; nothing was done"
        text = describe_counts(self.counts)
        if self.outcome == "nothing new" and self.counts.new:
            text += "; without a row, looked at again by the next run"
        return text if self.summary is None else f"{text}\n{self.summary.describe()}"


def describe_counts(counts: IntakeCounts, left: int = 0) -> str:
    """Describe the intake in one line. ``left``: files for further rounds."""
    parts = [f"{_files(counts.new, 'new ')}" if counts.new else "nothing new"]
    if counts.again:
        parts.append(f"{_files(counts.again)} again, in place of the old rows")
    if counts.removed:
        parts.append(f"rows of {_files(counts.removed)} removed")
    if left:
        parts.append(f"{_files(left)} more in further rounds")
    if counts.ignored:
        parts.append(f"{_files(counts.ignored, 'changed or vanished ')} ignored")
    if counts.settling:
        parts.append(f"{_files(counts.settling)} empty or too young, left for a later run")
    if counts.undated:
        parts.append(f"{_files(counts.undated)} in no folder of the partition key, left out")
    if counts.unread.count:
        parts.append(f"not read: {counts.unread.describe()}")
    return "Input: " + "; ".join(parts)


def _files(count: int, kind: str = "") -> str:
    return f"{count} {kind}file{'s' * (count != 1)}"


def etl(
    config: EtlConfig,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
) -> EtlResult:
    """Process the files below ``config.run.input`` that the table does not hold yet, and append them exactly once.

    The record that makes rows visible also names their files, so a run that is killed at any moment leaves either both
    or neither. With nothing to do it returns without Ray, and without a lease. SIGTERM and Ctrl-C stop it as they stop
    :func:`pipeline.run`, which has the other arguments too.

    Raises:
        ConfigError, SourceError, OutputError, ResourceError: before anything is generated; the message has the remedy.
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
    with stop.on_signals(), monitor.shown():  # the view ends before the signal acts
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
        left_out = None if manifest is None else compare_input(config, storage, origin, inputs, manifest)
        intake = None if left_out is None else draw(config, inputs, most=0, left_out=left_out)
    if intake is not None and not intake.left:
        return EtlResult(outcome="nothing new", intake=intake, counts=intake.counts)
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
    """The intake of :func:`etl` now (of more than ``max_files``, the first); changes nothing, and needs no lease.

    Raises:
        SourceError, OutputError: as :func:`etl`.
    """
    storage = open_storage(config.run.output, layout.SCRATCH, config.run.output_options)
    with Inputs() as inputs:
        origin = Origin.of(storage)
        left_out = compare_input(config, storage, origin, inputs, Manifest.load(storage, origin))
        return draw(config, inputs, left_out=left_out)


def _run(
    executor: Executor,
    config: EtlConfig,
    storage: Storage,
    lease: Lease,
    inputs: Inputs,
    monitor: Monitor,
) -> EtlResult:
    """Intakes in rounds of ``max_files``: memory holds the files of one round, and each is published by itself."""
    if config.run.mode == "new":
        check_new_table(config, storage)
    origin = prepare_output(config.run, storage, lease)
    if config.run.repair:
        repair_records(storage, lease, origin, lambda key: is_listed(config, key))
    manifest = recover(storage, lease, origin).manifest
    # Again, under the lease: another run may have done some of it in the meantime.
    left_out = compare_input(config, storage, origin, inputs, manifest)
    first = intake = draw(config, inputs, left_out=left_out)
    if intake.is_nothing:
        return EtlResult(outcome="nothing new", intake=intake, counts=intake.counts)
    counts, summary = first.counts, None
    with executor.session():
        while True:
            last = _round(executor, config, storage, lease, origin, inputs, intake, monitor)
            summary = last if summary is None or last is None else last.following(summary)
            if not intake.left:
                break
            intake = draw(config, inputs, after=intake.last)
            counts = counts.plus(intake)
    return EtlResult(outcome="nothing new" if summary is None else "done", intake=first, counts=counts, summary=summary)


def _round(
    executor: Executor,
    config: EtlConfig,
    storage: Storage,
    lease: Lease,
    origin: Origin,
    inputs: Inputs,
    intake: Intake,
    monitor: Monitor,
) -> RunSummary | None:
    """Process and publish an intake; None if its files have no rows."""
    state, manifest = RunState.load(storage), Manifest.load(storage, origin)
    scheduled = ScheduledRun(
        intake=intake,
        source=source_of_intake(config.run, intake, None if state is None else state.columns),
        inputs=inputs,
        revisions={p.position: p.revision for p in manifest.publications if p.position in intake.gone},
        columns=None if state is None else state.columns,
        within=config.within,
    )
    if not intake.gone and not scheduled.has_rows:
        return None
    # Files to do again become further versions of themselves, see _again.
    run = replace(config.run, retry_failed=False, repair=False)
    return run_held(executor, run, storage, lease, origin, monitor, scheduled)


def _settled(config: RunConfig, storage: Storage, origin: Origin) -> Manifest | None:
    """The manifest; None if there is something to do whatever the input is, or the state has to be corrected."""
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
