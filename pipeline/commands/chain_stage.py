"""A stage of a chain while the chain runs: its output, and its remaining work. Knows no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pipeline import layout
from pipeline.commands.begin import Begun, begin, prepare_output
from pipeline.commands.chain_config import ChainConfig, FilterStage
from pipeline.commands.filter import FilterResult, filter_on
from pipeline.commands.published_output import PublishedOutput, open_published
from pipeline.commands.run_checks import check_input, spooled
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import (
    ConfigError,
    DamagedError,
    FingerprintError,
    ResourceError,
    SourceError,
    TooManyFailuresError,
)
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.retry_failed import with_previous
from pipeline.plan.stage_before import StageBefore
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Progress
from pipeline.selection.select import Selection
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Revocation, Unit

_BATCH = 512


@dataclass(kw_only=True)
class StageRun:
    """A stage whose output this process holds.

    Attributes:
        name, number: of the stage.
        group: number of the group of stages whose actors it runs on.
        place: its place in that group.
        begun: its job, ledger and manifest.
        index: its planned, committed and published units.
        lease: on its output.
        before: the stage before; None for the first one.
        settings: hash of everything that changes its output.
        monitor: of the chain, which counts this stage under its name.
    """

    name: str
    number: int
    group: int
    place: int
    begun: Begun
    index: Index
    lease: Lease
    before: StageBefore | None
    settings: str
    manifest: Manifest
    monitor: Monitor
    seconds: float = 0.0

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.begun.job.config

    @property
    def as_before(self) -> StageBefore:
        """It, as the next stage sees it."""
        sampled = 0 if self.before is None else self.before.sampled_after
        return StageBefore(
            name=self.name, settings=self.settings, job=self.begun.job, index=self.index, sampled=sampled
        )  # fmt: skip

    def mark(self, earlier: Callable[[int], bool], *, retry_failed: bool) -> None:
        """Mark the units to generate; results that were made of other rows than are committed now are revoked.

        Args:
            earlier: whether an earlier stage is to generate a unit of this index; its rows are not settled then.
            retry_failed: mark units with failed rows, too.
        """
        if self.before is not None:
            stale = (record for record in self._stale(earlier))
            while batch := list(islice(stale, _BATCH)):
                self._revoke(batch)
        self.index.units.mark_work(retry_failed=retry_failed, only=self.begun.only)

    def _stale(self, earlier: Callable[[int], bool]) -> Iterator[CommitRecord]:
        assert self.before is not None
        for unit in self.index.units:
            record = self.index.records.get(unit.unit_id)
            if record is not None and not earlier(unit.index) and self.before.is_stale(unit.index, record):
                yield record

    def _revoke(self, records: list[CommitRecord]) -> None:
        self.begun.ledger.revoke([
            Revocation(unit_id=r.unit_id, attempt=r.attempt, reason="the stage before has other rows now")
            for r in records
        ])  # fmt: skip

    def due(self, index: int) -> Unit | None:
        """A unit whose rows have just been settled, ready to be read; None if its results stand."""
        assert self.before is not None
        unit = self.index.units[index]
        record = self.index.records.get(unit.unit_id)
        if record is not None and self.before.is_stale(index, record):
            self._revoke([record])
            self.index.units.mark_again(unit.unit_id)
        attempt = self.index.units.attempt(index)
        return self.ready(replace(unit, attempt=attempt)) if attempt else None

    def ready(self, unit: Unit) -> Unit:
        """A marked unit with the place of its rows, which are committed, and with its attempt before, if any."""
        assert self.before is not None
        made = self.before.made_ready(unit, self.place)
        return next(with_previous([made], self.index, derived_ids=False))

    @property
    def session(self) -> Progress:
        """Progress of this call, over all passes."""
        return self.monitor.now(self.name)

    def begin_pass(self) -> None:
        """Begin to count commits."""
        units = self.index.units
        self.monitor.plan(
            units.rows, self.index.settled(), units.work_units, stage=self.name, estimated=self.before is not None
        )

    def commit(self, records: list[CommitRecord]) -> None:
        """Enter units in the ledger.

        Raises:
            LeaseLostError: another run took the output over.
        """
        self.lease.check()
        for record, before in zip(records, self.begun.ledger.commit(records), strict=True):
            self.monitor.add(record, before, stage=self.name)

    def end_pass(self, seconds: float) -> None:
        """Keep the results of this pass."""
        self.seconds += seconds

    def save_counts(self) -> None:
        """Save how many rows the input of this stage had: planned was the most that there might be."""
        state = RunState.load(self.begun.job.storage)
        rows = self.index.records.totals().rows
        if self.before is not None and state is not None and state.rows != rows:
            replace(state, rows=rows).save(self.begun.job.storage, self.lease.epoch)


def begin_stage(
    chain: ChainConfig,
    number: int,
    storage: Storage,
    lease: Lease,
    index: Index,
    before: StageBefore | None,
    monitor: Monitor,
    keep: Sequence[str],
) -> StageRun:
    """Recover a stage's output, check that it may be continued, and plan its units; see :func:`begin`.

    Raises:
        FingerprintError: it was begun with other settings; names the stage and each difference.
        DamagedError: published files or its record are lost.
    """
    own = chain.stages[number]
    name, config = own.name, own.run
    group = next(group for group, members in enumerate(chain.groups) if number in members)
    if before is not None:
        before = replace(before, where=own.where)
        config = own.run_after(before.carried)
    with naming(name):
        origin = prepare_output(config, storage, lease, keep if before is None else ())
        begun = begin(config, storage, lease, index, origin, before=before)
    state = RunState.load(storage)
    assert state is not None, "it was saved"
    if before is not None:
        before.check_all_planned(state.fingerprint_hash, index)
    return StageRun(
        name=name, number=number, group=group, place=chain.groups[group].index(number), begun=begun, index=index,
        lease=lease, before=before, settings=state.fingerprint_hash, manifest=begun.manifest, monitor=monitor,
    )  # fmt: skip


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A block whose errors name the stage."""
    try:
        yield
    except FingerprintError as error:
        raise FingerprintError(
            f"stage {name!r}: {error}\nTo do this stage and those after it again, and keep the stages before it: "
            f"redo={name!r} (--redo {name})."
        ) from error
    except DamagedError as error:
        raise DamagedError(f"stage {name!r}: {error}") from error
    except (ConfigError, SourceError, ResourceError, TooManyFailuresError) as error:
        raise type(error)(f"stage {name!r}: {error}") from error


def check_before_discarding(config: ChainConfig, storages: Sequence[Storage]) -> list[str]:
    """:func:`check_later_stages` where the first stage is about to discard an output.

    Returns:
        Keys of the first stage's output that stay, see :func:`~pipeline.commands.run_checks.spooled`.

    Raises:
        ConfigError, SourceError: see :func:`~pipeline.commands.run_checks.check_input`.
        ConfigError, SourceError, ResourceError: see :func:`check_later_stages`.
    """
    first = config.stages[0].run
    if first.mode != "new":
        return []
    with naming(config.stages[0].name):
        job = check_input(first, storages[0])
    check_later_stages(config, job, storages)
    return spooled(job, storages[0])


def check_later_stages(config: ChainConfig, first: Job, storages: Sequence[Storage]) -> None:
    """Check prompts, columns and conditions of the later stages, and the filters at the end. Reads no rows.

    Raises:
        ConfigError, SourceError: a column is not there, or an expression is none; names the stage.
        ResourceError: a library that an expression needs is not installed.
    """
    job, name = first, config.stages[0].name
    with Index() as index:
        for own, storage in zip(config.stages[1:], storages[1:], strict=True):
            before = StageBefore(name=name, settings="", job=job, index=index, where=own.where)
            with naming(own.name):
                run = own.run_after(before.carried)
                job, name = resolve_job(run, before.rows, storage), own.name
    schema, prefix = job.schema, job.config.column_prefix
    for kept in config.filters:
        with naming(kept.name), Selection(kept.filter, schema, prefix) as selection:
            schema = selection.schema


def run_filters(
    filters: Sequence[FilterStage], source: Storage, options: Mapping[str, Any]
) -> dict[str, FilterResult]:  # fmt: skip
    """Filter the output ``source``, then the rows kept of it, and so on; the result of each by its name.

    A filter that is done already, of the same rows, does nothing. If the stage before has other rows now (new input
    files, a retry), it is made again, by the same settings.

    Raises:
        PipelineError: as of :func:`pipeline.filter`; an error about settings names the stage.
    """
    results: dict[str, FilterResult] = {}
    for own in filters:
        opened, storage = open_published(source), open_storage(own.run.output, layout.SCRATCH, options)
        run = replace(own.run, input=source.url, output_format=opened.format)  # type: ignore[arg-type]  # any of them
        with naming(own.name):
            results[own.name] = filter_on(opened, storage, own.filter, _anew(opened, storage, run), options)
        source = storage
    return results


def _anew(source: PublishedOutput, storage: Storage, run: RunConfig) -> RunConfig:
    """The same, or with ``mode="new"`` if the output there was made of other rows."""
    state = RunState.load(storage)
    if state is None or state.derived is None:
        return run
    same = all(state.fingerprint.get(name) == value for name, value in source.identity.items())
    return run if same else replace(run, mode="new")
