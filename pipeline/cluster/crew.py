"""The session and the actors of a job, started in the background while the driver still plans its units."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline import stages
from pipeline.cluster.bisection_actor import RemoteBisection, start_bisection
from pipeline.cluster.crew_state import CrewState
from pipeline.cluster.node_watch import NodeWatch
from pipeline.cluster.pool import Pool, first_actors
from pipeline.cluster.resources import ActorResources, connected_nodes, fit_pools
from pipeline.cluster.session import ensure_ray, start_probe
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.worker.load_engine import EngineLoader
from wedlm_core.kernels.cpu.kept import are_kept

__all__ = ["Background", "Crew", "assemble"]

_HELPERS = 2
"""Worker processes beside those of the generate actors: of the crash bisection, and of the first prefetch task."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """What runs a job's units: the actors, what those of each pool reserve, the crash bisection; and how they do."""

    resources: Mapping[str, ActorResources]
    bisection: RemoteBisection
    pool: Pool
    state: CrewState
    _ending: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def close(self) -> None:
        """End all of their processes; returns when that is done, whoever began it.

        Only once, and before Ray ends: Ray answers calls that come later by starting a session of its own.
        """
        with self._ending:
            if self._ended.is_set():
                return
            self._ended.set()
            self.state.close()
            self.pool.close()
            self.bisection.close()


def assemble(
    job: Job, load: EngineLoader, units: int | None = None, *, private: bool = False, beside: Sequence[RunConfig] = ()
) -> Crew:
    """Start the actors of a job in the running session; they load their models while the caller goes on.

    Args:
        job: the run.
        load: makes an actor's engine.
        units: work for the actors; there are no more of them than this. None: not known yet.
        private: whether the session is the run's own, which no node is ever added to.
        beside: runs whose actors share the cluster with these.

    Raises:
        ResourceError: the cluster cannot hold the actors, or its worker processes end as they start.
    """
    nodes = connected_nodes()
    resources = fit_pools(job.config, nodes, units, private=private, beside=beside)
    probe = start_probe(private=private)
    bisection = start_bisection(job.config)
    pool = Pool(job, resources, load, bisection)
    _announce(job, resources, alone=len(nodes) == 1)
    try:
        probe()
    except BaseException:
        pool.close()
        bisection.close()
        raise
    return Crew(resources=resources, bisection=bisection, pool=pool, state=CrewState(pool, bisection))


def _announce(job: Job, resources: Mapping[str, ActorResources], *, alone: bool) -> None:
    first = sum(first_actors(resources).values())
    most = sum(own.actors for own in resources.values())
    count = f"{first} actor{'s' * (first != 1)}" + (f" of up to {most}" if most > first else "")
    devices = {run.device for run in job.config.runs_of_pools().values()}
    on_cpu = not any(own.gpus for own in resources.values()) and devices <= {"auto", "cpu"}
    # On nodes of a cluster, what is kept here says nothing.
    cold = on_cpu and alone and not are_kept()
    once = "; it compiles its kernels for this CPU, once, in 15 to 80 s" if cold else ""
    stages.announce(f"starting {count} with {job.config.model_name}{once}")


class Background:
    """A thread that starts the session, and then whatever else is asked of it.

    Ray's processes die with the thread that started them, so it lives until :meth:`close`.
    """

    def __init__(self, actors: int) -> None:
        self._workers = actors + _HELPERS
        self._thread: ThreadPoolExecutor | None = None
        self._session: Future[bool] | None = None
        self._watch: NodeWatch | None = None
        self._crew: Future[Crew] | None = None

    def start(self) -> None:
        """Begin to start the session, unless that was done."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="session")
            self._session = self._thread.submit(self._start)

    def wait(self) -> None:
        """Return once the session has started.

        Raises:
            Exception: it could not be started.
        """
        self.start()
        assert self._session is not None
        self._session.result()

    def watch(self) -> NodeWatch:
        """The watch of the session's nodes, once that has started."""
        self.wait()
        assert self._watch is not None
        return self._watch

    def start_crew(self, make: Callable[[], Crew]) -> None:
        """Begin to start a crew, for :meth:`crew`."""
        self.start()
        assert self._thread is not None
        self._crew = self._thread.submit(self._assembled, make)

    def crew(self) -> Crew | None:
        """The crew that was started before, once it stands; the caller then owns it. None if there is none.

        Raises:
            Exception: it could not be started.
        """
        if self._crew is None:
            return None
        try:
            crew = self._crew.result()
        except Exception:
            self._crew = None
            raise
        # Not before: a signal may end the wait, and then it is for `close` to wait, as Ray must not end meanwhile.
        self._crew = None
        return crew

    def starting(self) -> Crew | None:
        """The crew that nobody has taken yet, if it stands."""
        crew = self._crew
        return crew.result() if crew is not None and crew.done() and crew.exception() is None else None

    def close(self) -> None:
        """End what was started: a crew that nobody has taken, and the session if it is ours."""
        if self._thread is None:
            return
        assert self._session is not None
        if self._crew is not None:
            with suppress(Exception):  # nobody waits for it any more
                self._crew.result().close()
        if self._watch is not None:
            self._watch.close()
        if self._session.exception() is None and self._session.result():
            import ray

            with stages.stage("Ray ended"):
                ray.shutdown()
        self._thread.shutdown()
        self._thread = None

    def _start(self) -> bool:
        with stages.stage("Ray started"):
            started = ensure_ray(self._workers)
        import ray

        self._watch = NodeWatch(ray.get_runtime_context().gcs_address)
        self._watch.start()
        return started

    def _assembled(self, make: Callable[[], Crew]) -> Crew:
        self.wait()
        return make()
