"""The Ray Data graph of a run: read and tokenise in tasks, generate and stage in an actor pool."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from pipeline import layout
from pipeline.actors.generate import EngineLoader, GenerateActor, load_engine
from pipeline.actors.tokenise import prepare_units
from pipeline.actors.watch import start_tally
from pipeline.cluster import ActorResources, plan_actors, ray_session
from pipeline.config import RunConfig
from pipeline.errors import EngineDiedError
from pipeline.gathering import together
from pipeline.job import Job
from pipeline.plan import ReadTask, Work
from pipeline.publish import PartJob, PartRecord, write_part
from pipeline.storage import Storage
from pipeline.types import CommitRecord

__all__ = ["Executor", "RayExecutor", "units_per_actor"]

_ROWS_PER_SLOT = 3
"""Rows in an actor's units for each slot of its engine: some are done and wait for the rest of their unit."""
TASK_CPUS = 0.25
"""CPUs that a reading task reserves; small, so that tasks fit beside the actors on a small machine."""


class Executor(Protocol):
    """What a run needs to get its units done."""

    def session(self) -> AbstractContextManager[None]:
        """Hold whatever the other calls need."""
        ...

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        """Generate and stage the units of ``work``; the records of those staged since the last look, in any order."""
        ...

    def write_parts(self, jobs: Sequence[PartJob]) -> list[PartRecord]:
        """:func:`pipeline.publish.write_part` over jobs, results in order."""
        ...


class RayExecutor:
    """The Ray session, graph and tasks.

    Args:
        config: of the run.
        load: makes each actor's engine, in its process.
    """

    def __init__(self, config: RunConfig, load: EngineLoader = load_engine) -> None:
        self._config = config
        self._load = load

    def session(self) -> AbstractContextManager[None]:
        """The running Ray session, or one for the duration of the block."""
        return ray_session()

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        """See :class:`Executor`.

        Raises:
            ResourceError: the cluster cannot hold the actors.
            EngineDiedError: actors died more often in a row than ``max_engine_deaths``, or could not start.
        """
        resources = plan_actors(self._config)
        held = units_per_actor(self._config, work.unit_rows, work.units)
        return together(_run_graph(job, work.tasks, self._load, resources, held))

    def write_parts(self, jobs: Sequence[PartJob]) -> list[PartRecord]:
        """In tasks, so that what is held of a part while it is written is not held here."""
        import ray

        remote = ray.remote(num_cpus=TASK_CPUS)(write_part)
        return ray.get([remote.remote(job) for job in jobs])


def units_per_actor(config: RunConfig, unit_rows: int, units: int) -> int:
    """Units that an actor may hold at once.

    One actor holds what keeps its engine full through the longest rows. Of several, each holds a sixteenth of its
    share at most, unless its engine needs more to feed on: what a slow one has not taken, the others will do.
    """
    wanted = config.resolved_units_in_flight(unit_rows)
    if config.actors == 1 or config.units_in_flight is not None:
        return wanted
    feed = 1 + math.ceil(_ROWS_PER_SLOT * config.engine.max_num_seqs / (unit_rows * config.sampling.n))
    return min(wanted, max(feed, units // (16 * config.actors)))


def _run_graph(
    job: Job, tasks: Iterable[ReadTask], load: EngineLoader, resources: ActorResources, units_in_flight: int
) -> Iterator[CommitRecord]:
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current().copy()
    # A block is closed as soon as it holds something: each envelope, hence each unit, is a block of its own.
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    config = job.config
    begin = time.time()
    blocks = [pa.table({"units": [[unit.to_json() for unit in task.units]]}) for task in tasks]
    with DataContext.current(context), warnings.catch_warnings():
        # Ray has announced named arguments for max_task_retries, but does not have them yet.
        warnings.simplefilter("ignore", category=DeprecationWarning)
        prepare: Any = prepare_units  # takes and gives Arrow tables only, which Ray's types cannot say
        dataset = ray.data.from_arrow(blocks).map_batches(
            prepare, batch_size=None, batch_format="pyarrow", fn_kwargs={"job": job}, num_cpus=TASK_CPUS
        )
        dataset = dataset.map_batches(
            GenerateActor,
            fn_constructor_args=(job, resources.threads, load, start_tally(config)),
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                size=config.actors,
                max_concurrent_calls_per_actor=units_in_flight,
                # A few more wait on the actor, so that a finished unit is followed at once.
                max_tasks_in_flight_per_actor=units_in_flight + max(1, units_in_flight // 4),
                enable_true_multi_threading=True,
            ),
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_task_retries=-1,  # the tally ends what cannot succeed
        )
        try:
            batch: Any
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for line in batch["record"].to_pylist():
                    yield CommitRecord.from_json(line)
        except ray.exceptions.RayError as error:
            raise _explained(error, job.storage, begin) from error


def _explained(error: Exception, storage: Storage, since: float) -> Exception:
    """What ended the graph, in the words of its cause; ``since``: when it began, seconds since the epoch."""
    import ray

    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(cause.cause, Exception):
        cause = cause.cause
    if not isinstance(cause, ray.exceptions.RayError):
        return cause
    notes = [key for key in storage.keys(layout.CRASHES) if layout.time_of_crash_note(key) >= since]
    if notes:
        why = f"The last one:\n{storage.read(notes[-1]).decode().strip()}"
    else:
        # What an actor raised in its constructor comes as the text of a traceback.
        said = str(cause).rsplit(f"{EngineDiedError.__name__}: ", 1)[-1].strip()
        why = f"It left no note: it was killed from outside, or ran out of memory. Ray says: {said}"
    return EngineDiedError(
        "a generate actor could not start, or actors died more often than max_engine_deaths allows. "
        f"{why}\nWhat is committed stays; mend the cause and run again to continue."
    )
