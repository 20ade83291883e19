"""The executor: runs the work of a command on Ray (a session, prefetch tasks, generate actors, part-writing tasks)."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from pipeline import layout
from pipeline.cluster.actor_pool import ActorPool, ActorSeconds, start_pool
from pipeline.cluster.feeding import Feeding
from pipeline.cluster.metrics_reporter import report_run
from pipeline.cluster.node_watch import NodeWatch
from pipeline.cluster.prefetch import TASK_CPUS, prefetch_later, prefetch_units
from pipeline.cluster.resources import ActorResources, connected_nodes, fit_pools, is_private
from pipeline.cluster.session import Background
from pipeline.cluster.streams import drain
from pipeline.cluster.tracing import FirstRows, Tracing
from pipeline.codec import masked_errors
from pipeline.commit.part_files import PartDamage, PartJob, PartRecord, write_part
from pipeline.config import RunConfig
from pipeline.errors import EngineDiedError, PipelineError, ResourceError
from pipeline.plan.job import Job
from pipeline.plan.units import Work
from pipeline.progress.snapshot import ExecutorState, ResourceSeconds
from pipeline.settings.pools import ActorRange
from pipeline.stopping import Stop
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import EngineLoader, load_engine
from pipeline.worker.row_traces import Traced

_LOG = logging.getLogger(__name__)
_ADVICE = re.compile(r"\nFailed to .+? after \d+/\d+ attempts.*", re.DOTALL)
_POLL_SECONDS = 1.0
_END_SECONDS = 10.0
"""How long the end of a session waits for the threads of a run."""
_SMALL_PART = 64
"""Units of a part that is written by the driver if it is the only one: a task's process takes longer to start."""


class Executor(Protocol):
    """The operations that a command needs to run units and write part files; tests implement it without Ray."""

    @property
    def starts(self) -> Sequence[Mapping[str, float]]:
        """Seconds of each stage of the start of every actor so far."""
        ...

    def session(self) -> AbstractContextManager[None]:
        """Context that creates Ray resources lazily."""
        ...

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        """Generate and stage the units of ``work``; yields the records of newly staged units, in any order."""
        ...

    def used(self) -> ResourceSeconds:
        """Resource use of the actors of all calls of :meth:`run_units` so far."""
        ...

    def traced(self) -> Traced | None:
        """Rows of the last :meth:`run_units` that were decoded once more for the report; waits for them a while."""
        ...

    def state(self) -> ExecutorState:
        """How the actors do at the moment. From any thread; does not wait for anything."""
        ...

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        """Apply :func:`pipeline.commit.part_files.write_part` to jobs, drawn lazily; results in their order."""
        ...


class RayExecutor:
    """The executor on Ray. A session is joined or started when it is first needed.

    ``load`` makes each actor's engine, in the actor's process. ``beside``: runs whose actors share the session.
    """

    def __init__(
        self, config: RunConfig, load: EngineLoader = load_engine, stop: Stop | None = None,
        beside: Sequence[RunConfig] = (),
    ) -> None:  # fmt: skip
        self._config, self._beside = config, tuple(beside)
        self._load = load
        self._stop = stop or Stop()
        self._private = is_private()
        self._background = Background()
        self._starts: list[Mapping[str, float]] = []
        self._lives: list[ActorSeconds] = []
        self._pool: ActorPool | None = None
        self._tracing = Tracing()
        self._sessions = 0
        self._threads: list[threading.Thread] = []

    @property
    def starts(self) -> Sequence[Mapping[str, float]]:
        """See :class:`Executor`."""
        return self._starts

    @contextmanager
    def session(self) -> Iterator[None]:
        """See :class:`Executor`. The end of the outermost one ends the session, if it was started here."""
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                self._tracing.close()
                if self._pool is not None:
                    self._pool.close()
                # Of a run that ended early: Ray ends a process if a thread of it calls Ray after its end.
                for thread in self._threads:
                    thread.join(_END_SECONDS)
                self._background.close()

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        """See :class:`Executor`.

        Raises:
            ResourceError: the cluster cannot hold the actors, or its worker processes end as they start.
            EngineDiedError: actors died more often in a row than ``max_engine_deaths``, or could not start.
            StoppedError: it was asked to stop; units that finished in time were yielded.
        """
        begin = time.time()
        self._tracing.close()
        self._tracing = Tracing()
        self._background.wait()
        self._stop.listen()  # at once: until then a signal meets Ray's handler first
        pool = self._pool = start_pool(job, self._load, work.units, private=self._private, beside=self._beside)
        self._lives.append(pool.seconds)
        watch = self._background.watch()
        graph = partial(self._run_graph, job, work, pool, watch, begin)
        return self._reported(pool, drain([graph], check=watch.check, begun=self._threads.append))

    def _run_graph(
        self, job: Job, work: Work, pool: ActorPool, watch: NodeWatch, begin: float
    ) -> Iterator[CommitRecord]:
        """The records of the units, as they are done; the actors are killed at the end."""
        import ray

        runs = job.config.runs_of_pools()
        held = {name: run.resolved_units_in_flight(work.unit_rows) for name, run in runs.items()}
        units = [prefetch_units(job, work.tasks, partial(_reserved, pool), pool.bisection)]
        if work.later is not None:
            units.append(prefetch_later(job, work.later, pool.bisection))
        first = FirstRows(job, wanted=work.traced)
        refit = None if self._private else _refit(job.config, pool.resources, work.units)
        try:
            with ExitStack() as stack:
                stack.callback(pool.close)
                feeding = Feeding(pool, held, work.units, self._stop, refit, job.config.drain_seconds)
                with self._stop.draining():
                    for record in feeding.run(units, watch, self._starts, work.end):
                        first.add(record)
                        yield record
                if not self._stop.asked and self._begin_tracing(first, pool):
                    stack.pop_all()  # the pool is ended when that is done
        except ray.exceptions.RayError as error:
            watch.confirm()
            raise _explained(error, job.storage, begin) from error

    def _begin_tracing(self, first: FirstRows, pool: ActorPool) -> bool:
        """Whether an actor traces rows for the report now, and ends the pool."""
        try:
            rows = first.read()
            return rows is not None and self._tracing.begin(pool, rows)
        except Exception:
            _LOG.warning("rows could not be traced for the report", exc_info=True)
            return False

    def traced(self) -> Traced | None:
        """See :class:`Executor`."""
        return self._tracing.result()

    def _reported(self, pool: ActorPool, lists: Iterator[list[CommitRecord]]) -> Iterator[list[CommitRecord]]:
        with report_run(self._config, pool.metrics):
            yield from pool.metrics.watch(lists)

    def used(self) -> ResourceSeconds:
        """See :class:`Executor`."""
        return sum((lives.used() for lives in self._lives), start=ResourceSeconds())

    def state(self) -> ExecutorState:
        """See :class:`Executor`."""
        return ExecutorState() if self._pool is None else replace(self._pool.state.read(), used=self.used())

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        """In Ray tasks, so that the driver's memory does not hold the parts; a single small part in this process."""
        drawn = iter(jobs)
        first = list(islice(drawn, 2))
        if len(first) == 1 and len(first[0].pieces) <= _SMALL_PART:
            yield write_part(first[0])
            return
        self._background.wait()
        import ray

        remote = ray.remote(num_cpus=TASK_CPUS)(_write_part)
        at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: deque[Any] = deque()
        for job in chain(first, drawn):
            if len(running) >= at_once:
                yield self._result(running.popleft())
            running.append(remote.remote(job))
        while running:
            yield self._result(running.popleft())

    def _result(self, reference: Any) -> Any:
        """``ray.get``, for as long as the cluster's head is there."""
        import ray

        while True:
            with suppress(ray.exceptions.GetTimeoutError):
                return ray.get(reference, timeout=_POLL_SECONDS)
            self._background.watch().check()


def _write_part(job: PartJob) -> PartRecord | PartDamage:
    """:func:`write_part` as a task, whose errors Ray writes to its logs."""
    with masked_errors():
        return write_part(job)


def _reserved(pool: ActorPool) -> tuple[float, float]:
    """CPUs and GPUs that the actors there are reserve, those that are pending included."""
    own = [pool.resources[name] for name in list(pool.names.values())]
    return sum(each.cpus for each in own), sum(each.gpus for each in own)


def _refit(
    config: RunConfig, resources: Mapping[str, ActorResources], units: int
) -> Callable[[], dict[str, int]] | None:  # fmt: skip
    """A function that says how many actors of a range the cluster has room for; None if no range follows the room."""
    runs = config.runs_of_pools()
    following = [name for name, run in runs.items() if isinstance(run.actors, ActorRange) and not resources[name].grows]
    if not following:
        return None

    def fit() -> dict[str, int]:
        try:
            fitted = fit_pools(config, connected_nodes(), units)
        except ResourceError:  # nodes are gone; the actors that are left go on
            return {}
        return {name: fitted[name].actors for name in following}

    return fit


def _without_advice(error: Exception) -> Exception:
    """The error with its original message: Ray Data appends its number of attempts and advice on its own settings."""
    if isinstance(error, PipelineError) and error.args and isinstance(error.args[0], str):
        error.args = (_ADVICE.sub("", error.args[0]), *error.args[1:])
    return error


def _explained(error: Exception, storage: Storage, since: float) -> Exception:
    """The error to raise for a failed run, with its cause. ``since``: begin of the run, seconds since 1970."""
    import ray

    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(cause.cause, Exception):
        cause = cause.cause
    if not isinstance(cause, ray.exceptions.RayError):
        return _without_advice(cause)
    notes = [key for key in storage.keys(layout.CRASHES) if layout.time_of_crash_note(key) >= since]
    raised = f"{EngineDiedError.__name__}: "
    if notes:
        why = f"The last one:\n{storage.read(notes[-1]).decode().strip()}"
    elif raised in str(cause):  # in the actor's constructor, which comes as the text of a traceback
        why = str(cause).rsplit(raised, 1)[-1].strip()
    else:
        why = f"It left no crash note: it was killed from outside, or ran out of memory. Ray says: {str(cause).strip()}"
    return EngineDiedError(
        "a generate actor could not start, or actors died more often than max_engine_deaths allows. "
        f"{why}\nCommitted rows stay; fix the cause and run again to continue."
    )
