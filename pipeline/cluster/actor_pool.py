"""The actors of a run as Ray processes, with its crash bisection: asks for, calls and ends them. Decides nothing."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline import stages
from pipeline.cluster.bisection_actor import RemoteBisection, start_bisection
from pipeline.cluster.dispatcher import Assignment
from pipeline.cluster.generate_actor import GenerateActor
from pipeline.cluster.metrics import DriverSource
from pipeline.cluster.pool_state import PoolState
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.private_ray import PER_NODE
from pipeline.cluster.resources import ActorResources, connected_nodes, fit_pools
from pipeline.cluster.session import start_probe
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.worker.load_engine import EngineLoader
from wedlm_core.kernels.cpu.kept import are_kept


class ActorSeconds:
    """Adds up the lives of actors. Thread-safe.

    A life begins with the actor's process and ends when the pool gives the actor back. In between Ray may replace the
    process, on a node that is paid for all the while: that time counts too. Time that an actor waits for a node does
    not.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: dict[object, tuple[float, float, float]] = {}
        self._ended = ResourceSeconds()

    def started(self, actor: object, *, gpus: float, cpus: float, ago: float = 0.0) -> None:
        """An actor, which reserves these, is there; its process began ``ago`` s before. Known actors are ignored."""
        with self._lock:
            self._alive.setdefault(actor, (self._clock() - ago, gpus, cpus))

    def ended(self, actor: object) -> None:
        """An actor was given back, or is lost for good. Unknown actors are ignored."""
        with self._lock:
            if (life := self._alive.pop(actor, None)) is not None:
                self._ended += self._lived(*life)

    def used(self) -> ResourceSeconds:
        """The sum up to now."""
        with self._lock:
            return sum((self._lived(*life) for life in self._alive.values()), start=self._ended)

    def _lived(self, begin: float, gpus: float, cpus: float) -> ResourceSeconds:
        seconds = self._clock() - begin
        return ResourceSeconds(accelerators=gpus * seconds, cpus=cpus * seconds)


_CONTROL_CALLS = 2
_LEAST_SHARE = 10_000
"""Ray counts resources in ten-thousandths."""
_ANSWER_SECONDS = 2.0


def start_pool(
    job: Job, load: EngineLoader, units: int, *, private: bool = False, beside: Sequence[RunConfig] = ()
) -> ActorPool:
    """Start the actors of a job in the running session; they load their models while the caller goes on.

    ``units``, ``private`` and ``beside`` are those of :func:`fit_pools`.

    Raises:
        ResourceError: the cluster cannot hold the actors, or its worker processes end as they start.
    """
    nodes = connected_nodes()
    resources = fit_pools(job.config, nodes, units, private=private, beside=beside)
    probe = start_probe(private=private)
    pool = ActorPool(job, resources, load, start_bisection(job.config), units)
    _announce(job, pool, alone=len(nodes) == 1)
    try:
        probe()
    except BaseException:
        pool.close()
        raise
    return pool


class ActorPool:
    """The generate actors of all pools, numbered in the order of their requests.

    Attributes:
        bisection: records the units of each process, and its deaths; it is ended with the actors.
        seconds: how long the actors live.
        state: how the actors do, for those who watch the run.
        closed: whether all actors were ended, and none is started any more.
    """

    def __init__(
        self, job: Job, resources: Mapping[str, ActorResources], load: EngineLoader, bisection: RemoteBisection,
        units: int,
    ) -> None:  # fmt: skip
        import ray

        self.resources, self.bisection = dict(resources), bisection
        self.seconds, self.metrics = ActorSeconds(), DriverSource(units)
        self.actors: dict[int, Any] = {}
        """The actors that were asked for and have not been ended."""
        self.names: dict[int, str] = {}
        """The pool of each."""
        self.state = PoolState(self)
        self.closed = False
        self._closing = threading.Lock()
        self._numbers = itertools.count()
        self._run = uuid.uuid4().hex[:12]
        self._load = load
        # Ray warns of references among an actor's arguments: they may be lost before a restart. We pickle them
        # ourselves. The job then lives as long as the driver, the bisection's actor as long as the handle above.
        self._shared = ray.cloudpickle.dumps((ray.put(job), bisection))
        # The dispatcher limits the units of an actor.
        groups = {"units": job.config.most_units_in_flight(), "control": _CONTROL_CALLS, "watch": 1}
        self._kind: Any = ray.remote(concurrency_groups=groups)(GenerateActor)  # type: ignore[call-overload]  # which Ray's stubs lack
        self._options = {name: _options(own) for name, own in resources.items()}
        # As many as always stay; where none does, one of the first pool.
        first = {name: own.least for name, own in resources.items()}
        for name, count in (first if any(first.values()) else {next(iter(resources)): 1}).items():
            for _ in range(count):
                self.start(name)

    # --- from request to end ----------------------------------------------------------------------------

    def start(self, pool: str) -> int:
        """Ask Ray for an actor of a pool; returns its number. Until a node has room it is pending, as a demand.

        Raises:
            RuntimeError: all actors were ended.
        """
        if self.closed:
            raise RuntimeError("the actors of this run were ended")
        number = next(self._numbers)
        make = self._kind.options(**self._options[pool])
        threads = self.resources[pool].threads
        self.actors[number] = make.remote(
            self._shared, pool, self._worker(number), time.time(), threads, self._load
        )  # fmt: skip
        self.names[number] = pool
        return number

    def end(self, actor: int) -> None:
        """Kill an actor, or withdraw the request for it. Its resources are free then."""
        import ray

        self.seconds.ended(actor)
        handle = self.actors.pop(actor, None)
        self.names.pop(actor, None)
        if handle is not None:
            with contextlib.suppress(Exception):  # the session may be gone
                ray.kill(handle, no_restart=True)
                # After that: its units have not killed it.
                self.bisection.end_process(self._worker(actor))

    def close(self) -> None:
        """End all processes; returns when that is done, whoever began it. None is started any more.

        Only once, and before Ray ends: Ray answers calls that come later by starting a session of its own.
        """
        with self._closing:
            if self.closed:
                return
            self.closed = True
            self.state.close()
            for actor in list(self.actors):
                self.end(actor)
            self.bisection.close()

    @property
    def most(self) -> int:
        """Actors that there may be, of all pools."""
        return sum(own.actors for own in list(self.resources.values()))

    def begun(self) -> set[int]:
        """Actors whose process has begun, as far as the bisection answers soon."""
        import ray

        try:
            reached = ray.get(self.bisection.reached(), timeout=_ANSWER_SECONDS)
        except ray.exceptions.RayError:  # no more than a message depends on it
            return set()
        return {actor for actor in list(self.actors) if self._worker(actor) in reached}

    def note_start(self, actor: int, taken: Mapping[str, float]) -> None:
        """The actor's life, which is paid for, began with its process. ``taken``: seconds of the stages since."""
        own = self.resources[self.names[actor]]
        ago = sum(seconds for name, seconds in taken.items() if name != "scheduled")
        self.seconds.started(actor, gpus=own.gpus, cpus=own.cpus, ago=ago)

    # --- calls ------------------------------------------------------------------------------------------

    def watch(self, actor: int, known: str) -> Any:
        """A reference to the result of :meth:`GenerateActor.watch`, of the actor's next process if this one dies."""
        return self.actors[actor].watch.options(concurrency_group="watch").remote(known)

    def engine_load(self, actor: int) -> Any:
        """A reference to the result of :meth:`GenerateActor.engine_load`."""
        return self.actors[actor].engine_load.options(concurrency_group="control", max_task_retries=0).remote()

    def run(self, given: Assignment, unit: PreparedUnit) -> Any:
        """A reference to the result of :meth:`GenerateActor.run`."""
        method = self.actors[given.actor].run.options(concurrency_group="units")
        return method.remote(unit.unit.to_json(), given.execution, unit.block)

    def trace(self, actor: int, rows: pa.Table) -> Any:
        """A reference to the result of :meth:`GenerateActor.trace`."""
        # Not retried: it is not worth the start of a process.
        return self.actors[actor].trace.options(concurrency_group="control", max_task_retries=0).remote(rows)

    def drop(self, given: Assignment) -> None:
        """See :meth:`GenerateActor.drop`."""
        self.actors[given.actor].drop.options(concurrency_group="control").remote(given.unit_id, given.execution)

    def _worker(self, actor: int) -> str:
        """The name of an actor, which all of its processes have."""
        return f"{self._run}-{actor}"


def _options(resources: ActorResources) -> dict[str, Any]:
    """Ray's options for an actor of a pool."""
    custom = dict(resources.custom)
    if resources.per_node is not None:
        custom[f"{PER_NODE}wedlm-{uuid.uuid4().hex[:12]}"] = _LEAST_SHARE // resources.per_node / _LEAST_SHARE
    return {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        "resources": custom,
        "accelerator_type": resources.accelerator_type,
        "max_restarts": -1,
        "max_task_retries": -1,  # the crash bisection ends tasks that cannot succeed
    }


def _announce(job: Job, pool: ActorPool, *, alone: bool) -> None:
    first, most = len(pool.actors), pool.most
    count = f"{first} actor{'s' * (first != 1)}" + (f" of up to {most}" if most > first else "")
    devices = {run.device for run in job.config.runs_of_pools().values()}
    on_cpu = not any(own.gpus for own in pool.resources.values()) and devices <= {"auto", "cpu"}
    # This node's cache says nothing about other nodes of a cluster.
    cold = on_cpu and alone and not are_kept()
    once = "; it compiles its kernels for this CPU, once, in 15 to 80 s" if cold else ""
    stages.announce(f"starting {count} with {job.config.model_name}{once}")
