"""The generate actors of a run as Ray processes: asks for them, calls them, ends them. Decides nothing."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.cluster.actor_seconds import ActorSeconds
from pipeline.cluster.dispatcher import Assignment
from pipeline.cluster.generate_actor import POOL, GenerateActor, Recorder
from pipeline.cluster.metric_sources import DriverSource
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.resources import ActorResources
from pipeline.plan.job import Job
from pipeline.worker.load_engine import EngineLoader, load_for_any_row

__all__ = ["Pool", "first_actors"]

_CONTROL_CALLS = 2
_LEAST_SHARE = 10_000
"""Ray counts resources in ten-thousandths."""


class PooledGenerateActor(GenerateActor):
    """Gets the job by reference.

    Args:
        shared: the pickled pair (reference to the job, crash bisection).
        pool: the name of its pool.
        asked: when it was asked for, seconds since 1970.
        num_threads, load: see :class:`GenerateActor`.
    """

    def __init__(self, shared: bytes, pool: str, asked: float, num_threads: int, load: EngineLoader) -> None:
        import ray

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a call that Ray itself makes there
            restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._scheduled = 0.0 if restarted else max(0.0, time.time() - asked)
        job, bisection = ray.cloudpickle.loads(shared)
        job = ray.get(job)
        job, *later = (replace(own, config=own.config.runs_of_pools()[pool]) for own in (job, *job.later))
        job = replace(job, later=tuple(later))
        own = partial(load_for_any_row, load, pool) if pool else load
        super().__init__(job, num_threads, own, bisection, pool=pool or POOL)

    def ready(self) -> dict[str, float]:
        """See :meth:`GenerateActor.ready`; with the time from the request to this process."""
        return {"scheduled": self._scheduled, **super().ready()}


def first_actors(resources: Mapping[str, ActorResources]) -> dict[str, int]:
    """Actors of each pool to ask for at first: as many as always stay; where none does, one of the first pool."""
    first = {name: own.least for name, own in resources.items()}
    return first if any(first.values()) else {next(iter(resources)): 1}


class Pool:
    """The generate actors of all pools, numbered in the order in which they are asked for.

    Attributes:
        seconds: how long they live.
        metrics: of the driver; it is told the dispatcher.
        closed: whether all actors were ended, and none is started any more.

    Args:
        job: the resolved run that every actor works for.
        resources: what the actors of each pool reserve.
        load: makes an actor's engine.
        bisection: records which units run in which process, and its deaths.
    """

    def __init__(
        self, job: Job, resources: Mapping[str, ActorResources], load: EngineLoader, bisection: Recorder
    ) -> None:
        import ray

        self.resources, self.seconds, self.metrics = dict(resources), ActorSeconds(), DriverSource()
        self.actors: dict[int, Any] = {}
        """The actors that were asked for and have not been ended."""
        self.names: dict[int, str] = {}
        """The pool of each."""
        self._numbers = itertools.count()
        self.closed = False
        self._load = load
        # Ray warns of references among an actor's arguments: they may be lost before a restart. We pickle them
        # ourselves. The job then lives as long as the driver, the bisection's actor as long as the handle below.
        self._shared = ray.cloudpickle.dumps((ray.put(job), bisection))
        self._bisection = bisection
        # The pool is made before the units are planned. What an actor is given at once is up to the dispatcher.
        groups = {"units": job.config.most_units_in_flight(), "control": _CONTROL_CALLS, "watch": 1}
        self._kind: Any = ray.remote(concurrency_groups=groups)(PooledGenerateActor)  # type: ignore[call-overload]  # which Ray's stubs lack
        self._options = {name: _options(own) for name, own in resources.items()}
        for name, count in first_actors(resources).items():
            for _ in range(count):
                self.start(name)

    def start(self, pool: str) -> int:
        """Ask Ray for an actor of a pool; returns its number. Until a node has room it is pending, as a demand.

        Raises:
            RuntimeError: all actors were ended.
        """
        if self.closed:
            raise RuntimeError("the actors of this run were ended")
        number = next(self._numbers)
        make = self._kind.options(**self._options[pool])
        self.actors[number] = make.remote(self._shared, pool, time.time(), self.resources[pool].threads, self._load)
        self.names[number] = pool
        return number

    def end(self, actor: int) -> None:
        """Kill an actor, or withdraw the request for it. What it reserved is free then."""
        import ray

        self.seconds.ended(actor)
        handle = self.actors.pop(actor, None)
        self.names.pop(actor, None)
        if handle is not None:
            with contextlib.suppress(Exception):  # the session may be gone
                ray.kill(handle, no_restart=True)
                # After that: what it was running has not killed it.
                self._bisection.end_process(handle._actor_id.hex())

    def close(self) -> None:
        """End all actors; none is started any more."""
        self.closed = True
        self.seconds.ended_all()
        for actor in list(self.actors):
            self.end(actor)

    @property
    def asked_for(self) -> int:
        """Actors that were asked for and have not been ended."""
        return len(self.actors)

    @property
    def most(self) -> int:
        """Actors that there may be, of all pools."""
        return sum(own.actors for own in list(self.resources.values()))

    def is_placed(self, actor: int) -> bool:
        """Whether Ray has found a node for an actor."""
        import ray

        try:  # a part of Ray that may change; no more than a message depends on it
            table = ray._private.state.actors(self.actors[actor]._actor_id.hex())
            return bool(table["Address"]["IPAddress"])
        except Exception:
            return False

    def note_start(self, actor: int, taken: Mapping[str, float]) -> None:
        """The actor's life, which is paid for, began with its process. ``taken``: seconds of the stages since."""
        own = self.resources[self.names[actor]]
        ago = sum(seconds for name, seconds in taken.items() if name != "scheduled")
        self.seconds.started(actor, gpus=own.gpus, cpus=own.cpus, ago=ago)

    def ready(self, actor: int) -> Any:
        """A reference that resolves once the actor has loaded its model."""
        return self.actors[actor].ready.options(concurrency_group="control").remote()

    def watch(self, actor: int, process: str) -> Any:
        """A reference to what :meth:`GenerateActor.watch` returns."""
        # Not retried: Ray would tell the user of each one that the end of its actor cuts off.
        return self.actors[actor].watch.options(concurrency_group="watch", max_task_retries=0).remote(process)

    def engine_load(self, actor: int) -> Any:
        """A reference to what :meth:`GenerateActor.engine_load` returns."""
        return self.actors[actor].engine_load.options(concurrency_group="control", max_task_retries=0).remote()

    def run(self, given: Assignment, unit: PreparedUnit) -> Any:
        """A reference to what :meth:`GenerateActor.run` returns."""
        method = self.actors[given.actor].run.options(concurrency_group="units")
        return method.remote(unit.unit.to_json(), given.execution, unit.block)

    def trace(self, actor: int, rows: pa.Table) -> Any:
        """A reference to what :meth:`GenerateActor.trace` returns."""
        # Not retried: nobody needs it enough to start a process anew.
        return self.actors[actor].trace.options(concurrency_group="control", max_task_retries=0).remote(rows)

    def drop(self, given: Assignment) -> None:
        """See :meth:`GenerateActor.drop`."""
        self.actors[given.actor].drop.options(concurrency_group="control").remote(given.unit_id, given.execution)


def _options(resources: ActorResources) -> dict[str, Any]:
    """Ray's options for an actor of a pool."""
    import ray

    raylet: Any = ray._raylet  # which has no types
    custom = dict(resources.custom)
    if resources.per_node is not None:
        # Each node has 1 of any resource with this prefix, nodes to come included; Ray Serve limits replicas so.
        custom[f"{raylet.IMPLICIT_RESOURCE_PREFIX}wedlm-{uuid.uuid4().hex[:12]}"] = (
            _LEAST_SHARE // resources.per_node / _LEAST_SHARE
        )
    return {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        "resources": custom,
        "accelerator_type": resources.accelerator_type,
        "max_restarts": -1,
        "max_task_retries": -1,  # the crash bisection ends what cannot succeed
    }
