"""What a run needs of Ray: a session, tasks that read ahead, actors that generate, tasks that write parts."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pipeline import layout
from pipeline.cluster.actor_pool import Pool, generate
from pipeline.cluster.bisection_actor import start_tally
from pipeline.cluster.drain import together
from pipeline.cluster.prefetch import TASK_CPUS, read_ahead
from pipeline.cluster.session import ActorResources, check_workers, plan_actors, ray_session
from pipeline.commit.part_files import PartDamage, PartJob, PartRecord, write_part
from pipeline.config import RunConfig
from pipeline.errors import EngineDiedError, PipelineError
from pipeline.plan.job import Job
from pipeline.plan.units import Work
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import EngineLoader, load_engine

__all__ = ["Executor", "RayExecutor", "units_per_actor"]

_ADVICE = re.compile(r"\nFailed to .+? after \d+/\d+ attempts.*", re.DOTALL)
_ROWS_PER_SLOT = 3
"""Rows in an actor's units for each slot of its engine: some are done and wait for the rest of their unit."""


class Executor(Protocol):
    """What a run needs to get its units done."""

    def session(self) -> AbstractContextManager[None]:
        """Hold whatever the other calls need."""
        ...

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        """Generate and stage the units of ``work``; the records of those staged since the last look, in any order."""
        ...

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        """:func:`pipeline.commit.part_files.write_part` over jobs, read as they are written; results in order."""
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
            ResourceError: the cluster cannot hold the actors, or no process of it lives.
            EngineDiedError: actors died more often in a row than ``max_engine_deaths``, or could not start.
        """
        resources = plan_actors(self._config)
        check_workers()
        held = units_per_actor(self._config, work.unit_rows, work.units)
        return together(_run_graph(job, work, self._load, resources, held))

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        """In tasks, so that what is held of a part while it is written is not held here."""
        import ray

        remote = ray.remote(num_cpus=TASK_CPUS)(write_part)
        at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: deque[Any] = deque()
        for job in jobs:
            if len(running) >= at_once:
                yield ray.get(running.popleft())
            running.append(remote.remote(job))
        while running:
            yield ray.get(running.popleft())


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
    job: Job, work: Work, load: EngineLoader, resources: ActorResources, held: int
) -> Iterator[CommitRecord]:
    import ray

    begin = time.time()
    tally = start_tally(job.config)
    try:
        with Pool(job, resources, load, tally, held) as pool:
            yield from generate(pool, read_ahead(job, work.tasks, resources, tally), held)
    except ray.exceptions.RayError as error:
        raise _explained(error, job.storage, begin) from error


def _without_advice(error: Exception) -> Exception:
    """An error of ours as it was raised: Ray Data appends how often it tried, and settings of its own."""
    if isinstance(error, PipelineError) and error.args and isinstance(error.args[0], str):
        error.args = (_ADVICE.sub("", error.args[0]), *error.args[1:])
    return error


def _explained(error: Exception, storage: Storage, since: float) -> Exception:
    """What ended the graph, in the words of its cause; ``since``: when it began, seconds since the epoch."""
    import ray

    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(cause.cause, Exception):
        cause = cause.cause
    if not isinstance(cause, ray.exceptions.RayError):
        return _without_advice(cause)
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
