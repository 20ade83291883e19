"""``chain``: several stages as one job. Each has an ordinary output, and begins with the commits of the one before.

All stages run on the same actors, whose engines batch the rows of all of them. The driver commits the units of each
stage to its own ledger; when a unit is committed, the unit of the next stage that is made of it is read. Outputs are
published in order once all stages are done: until then each stage reads the staged units of the one before, also after
a process was lost.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import Any, Unpack

from pipeline import layout, stages
from pipeline.cluster.executor import Executor, RayExecutor
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.chain_flow import Flow, merged
from pipeline.commands.chain_stage import (
    StageRun,
    begin_stage,
    check_before_discarding,
    check_later_stages,
    naming,
    run_filters,
)
from pipeline.commands.chain_summary import ChainResult, ChainSummary
from pipeline.commands.run import check_failures, check_inputs, publish_committed, summary_of
from pipeline.commands.run_checks import check_setup, check_writable
from pipeline.commands.run_fields import RunFields
from pipeline.commands.run_report import put_page
from pipeline.commands.summary import StartUp
from pipeline.commit.index import Index
from pipeline.commit.lease import hold_lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.repair import describe_damage, revoke
from pipeline.config import RunConfig
from pipeline.errors import DamagedError
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import ExecutorState, Progress, ResourceSeconds, Stage
from pipeline.progress.views import Observer, ProgressMode, views
from pipeline.sources import check_apart
from pipeline.stopping import Stop, stop_budget
from pipeline.storage.damage import Damage, FoundDamageError, StageDamageError
from pipeline.storage.open import check_output_url, open_storage
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord

ChainProgress = Callable[[str, Progress], None]
"""Called with the name of a stage and its progress."""


def chain(
    stages: Sequence[Mapping[str, Any]] | ChainConfig,
    *,
    input: Any = None,
    output: str | os.PathLike[str] | None = None,
    redo: str | None = None,
    on_progress: ChainProgress | None = None,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
    **fields: Unpack[RunFields],
) -> ChainResult:
    """Generate in several stages, each for the rows of the one before, and publish the output of each.

    ``pipeline.chain([{"name": "generate"}, {"name": "judge", "prompt_template": "Rate this: {{ text }}"}],
    input="prompts.jsonl", output="out/", model="tiny")`` writes ``out/generate`` and ``out/judge``. Called again, it
    continues every stage, includes new input files, and does nothing if everything is done.

    Args:
        stages: for each stage its ``name`` and those fields of :class:`~pipeline.config.RunConfig` that are its own:
            sampling, prompt_template, parse, columns, ...; or a whole configuration.
        input: of the first stage.
        output: the folder or URL above the outputs of the stages.
        redo: the name of a stage: it and those after it are discarded and done again.
        on_progress: called after each committed unit, with the name of its stage.
        progress: how the chain is shown while it goes on, all of its stages together; as of :func:`pipeline.run`.
        progress_seconds: between two lines.
        **fields: of ``RunConfig``, for all stages: model, actors, engine, ...

    Raises:
        PipelineError: as of :func:`pipeline.run`. An error about one stage names it.
    """
    if isinstance(stages, ChainConfig):
        config = stages
    else:
        base = RunConfig.from_mapping({**fields, "input": input, "output": os.fspath(output or "")})
        config = ChainConfig.of(base, stages, redo)
    base = config.base
    monitor = _monitor_of(config, on_progress, views(progress, progress_seconds))
    storages = [open_storage(own.run.output, layout.SCRATCH, base.output_options) for own in config.stages]
    check_output_url(base.output, base.output_options)
    check_apart(base.input, base.output)
    for storage in storages:
        check_writable(storage)
    stop = Stop(stop_budget(base.stop_seconds))
    with stop.on_signals(), monitor.shown():  # the view ends before the signal acts
        firsts = [config.stages[members[0]].run for members in config.groups]
        executors = [
            RayExecutor(own, stop=stop, beside=[run for run in firsts if run is not own]) for own in firsts
        ]  # fmt: skip
        summary = chain_on(executors, config, storages, monitor)
    return ChainResult(summary=summary, storage_options=base.output_options)


def _monitor_of(
    config: ChainConfig, on_progress: ChainProgress | None = None, observers: Sequence[Observer] = ()
) -> Monitor:  # fmt: skip
    base, models = config.base, dict.fromkeys(own.run.model_name for own in config.stages)
    return Monitor(
        observers, on_stage=on_progress, output=base.output_name, model=" and ".join(models),
        price_per_hour=base.price_per_hour, chain=[own.name for own in config.stages],
    )  # fmt: skip


def chain_on(
    executors: Sequence[Executor], config: ChainConfig, storages: Sequence[Storage], monitor: Monitor | None = None
) -> ChainSummary:
    """:func:`chain` with an executor for each group of stages, and a storage for each stage that generates."""
    monitor = monitor or _monitor_of(config)
    monitor.begin(lambda: reduce(operator.add, (executor.state() for executor in executors), ExecutorState()))
    for own in config.stages:
        check_setup(own.run)
    with ExitStack() as held:
        leases = [held.enter_context(hold_lease(storage)) for storage in storages]
        indexes = [held.enter_context(Index()) for _ in storages]
        for executor in executors:
            held.enter_context(executor.session())
        runs: list[StageRun] = []
        with stages.stage("units planned"):
            keep = check_before_discarding(config, storages)
            for number, (storage, lease, index) in enumerate(zip(storages, leases, indexes, strict=True)):
                before = runs[-1].as_before if runs else None
                runs.append(begin_stage(config, number, storage, lease, index, before, monitor, keep))
                if before is None:
                    check_later_stages(config, runs[0].begun.job, storages)
        begin = time.monotonic()
        _generate_and_publish(executors, runs, monitor)
        for run in runs:
            _report(run)
        if config.filters:
            monitor.enter(Stage.FILTERING)
        seconds = time.monotonic() - begin
        return ChainSummary(
            output=config.base.output,
            stages={run.name: summary_of(run.begun, run.index, run.manifest, run.session, run.seconds) for run in runs},
            filters=run_filters(config.filters, storages[-1], config.base.output_options),
            seconds=seconds,
            start_up=StartUp.of([start for executor in executors for start in executor.starts]),
            used=sum((executor.used() for executor in executors), start=ResourceSeconds()),
            price_per_hour=config.base.price_per_hour,
        )


def _report(run: StageRun) -> None:
    """Write the report of a stage, unless nothing was done and it is there."""
    storage = run.begun.job.storage
    if run.config.report and (run.session.session.units or not storage.exists(layout.REPORT_PAGE)):
        put_page(storage, run.lease, run.index)


def _generate_and_publish(executors: Sequence[Executor], runs: Sequence[StageRun], monitor: Monitor) -> None:
    """Generate due units and publish all stages; units that turn out to be damaged are generated again, once.

    Raises:
        DamagedError: a unit was damaged twice, or published files are damaged.
    """
    repeated: set[str] = set()
    retry_failed = runs[0].config.retry_failed
    while True:
        try:
            flow = Flow(runs, retry_failed=retry_failed)
            if flow.open:
                _generate(executors, runs, flow)
            retry_failed = False
            monitor.enter(Stage.PUBLISHING)
            check_inputs(runs[0].begun.job, runs[0].index)
            with stages.stage("published"):
                for run in runs:
                    run.save_counts()
                    with _damage_in(run):
                        run.manifest = publish_committed(executors[0], run.begun, run.index, run.lease, run.manifest)
            return
        except StageDamageError as error:
            again = _revoke(next(run for run in runs if run.begun.job.storage.url == error.url), error.damages)
        if repeated & again:
            raise DamagedError(
                f"staged rows of units {sorted(repeated & again)[:3]} were damaged twice in this run. Check the "
                "storage, and run again to continue."
            )
        repeated |= again


@contextmanager
def _damage_in(run: StageRun) -> Iterator[None]:
    """Context: damage is reported as damage of a stage's output."""
    try:
        yield
    except FoundDamageError as error:
        raise StageDamageError(error.damages, run.begun.job.storage.url) from error


def _revoke(run: StageRun, damages: Sequence[Damage]) -> set[str]:
    """Revoke the units of damaged objects of a stage; returns their ids.

    Raises:
        DamagedError: published files are damaged, and ``repair`` was not asked for.
    """
    run.lease.verify()  # a successor may have published and removed the missing files
    storage = run.begun.job.storage
    run.manifest = Manifest.load(storage)  # includes revisions that were published before the damage was found
    published = [damage for damage in damages if not damage.key.startswith(f"{layout.STAGED}/")]
    if published and not run.config.repair:
        raise DamagedError(f"stage {run.name!r}: {describe_damage(storage.url, published)}")
    return revoke(damages, run.manifest, run.index, run.begun.ledger)


def _generate(executors: Sequence[Executor], runs: Sequence[StageRun], flow: Flow) -> None:
    """Generate and commit the marked units, all stages at once."""
    begin = time.monotonic()
    for run in runs:
        run.begin_pass()
    streams = []
    for group, executor in enumerate(executors):
        first, *later = (run.begun.job for run in runs if run.group == group)
        if (work := flow.work(group)) is not None:
            streams.append(partial(executor.run_units, replace(first, later=tuple(later)), work))
    try:
        for records in merged(streams, flow.end):
            for run, own in _by_stage(flow, records):
                run.commit(own)
                for record in own:
                    flow.settle(run, record)
            for run in runs:
                with naming(run.name):
                    check_failures(run.session.done, run.config.max_failed_fraction)
    finally:
        flow.end()
        for run in runs:
            run.end_pass(time.monotonic() - begin)
    for run in runs:
        if missing := run.index.units.missing():
            raise AssertionError(f"stage {run.name!r} ended without an error, but units {missing} have no record")


def _by_stage(flow: Flow, records: Sequence[CommitRecord]) -> Iterator[tuple[StageRun, list[CommitRecord]]]:
    """The records of each stage, those of the first one first."""
    found: dict[int, tuple[StageRun, list[CommitRecord]]] = {}
    for record in records:
        run = flow.stage_of(record)
        found.setdefault(run.number, (run, []))[1].append(record)
    return (found[number] for number in sorted(found))
