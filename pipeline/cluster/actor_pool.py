"""The pool of generate actors, and the driver loop that feeds it: carries out the dispatcher's decisions with Ray."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline import stages
from pipeline.cluster.actor_seconds import ActorSeconds
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.generate_actor import GenerateActor
from pipeline.cluster.metric_sources import DriverSource
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.resources import ActorResources
from pipeline.plan.job import Job
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import EngineLoader
from pipeline.worker.row_isolation import BisectionLike

__all__ = ["Pool", "generate"]

_CONTROL_CALLS = 2
_MIN_PREFETCHED = 8
"""Prefetched units per actor, at least: with fewer the dispatcher has too few to choose a matching prefix from."""
_END_SECONDS = 10.0
"""How long a job that ends early waits for its prefetch thread."""
_POLL_SECONDS = 1.0
"""Longest wait for an event. A slow actor causes no event, so the dispatcher is asked at least this often."""


class PooledGenerateActor(GenerateActor):
    """Gets the job by reference. ``shared``: the pickled pair (reference to the job, crash bisection)."""

    def __init__(self, shared: bytes, num_threads: int, load: EngineLoader) -> None:
        import ray

        job, bisection = ray.cloudpickle.loads(shared)
        super().__init__(ray.get(job), num_threads, load, bisection)


class Pool:
    """The generate actors; a context manager that kills them at its end.

    Attributes:
        seconds: how long they live.
        metrics: of the driver; it is told the dispatcher.

    Args:
        job: the resolved run that every actor works for.
        resources: how many actors there are, and what each reserves.
        load: makes an actor's engine.
        bisection: records which units run in which process, and its deaths.
    """

    def __init__(self, job: Job, resources: ActorResources, load: EngineLoader, bisection: BisectionLike) -> None:
        import ray

        # The pool is made before the units are planned. What an actor is given at once is up to :func:`generate`.
        groups = {"units": job.config.most_units_in_flight(), "control": _CONTROL_CALLS}
        kind: Any = ray.remote(concurrency_groups=groups)  # type: ignore[call-overload]  # which Ray's stubs lack
        make = kind(PooledGenerateActor).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_restarts=-1,
            max_task_retries=-1,  # the crash bisection ends what cannot succeed
        )
        # Ray warns of references among an actor's arguments: they may be lost before a restart. We pickle them
        # ourselves. The job then lives as long as the driver, the bisection's actor as long as the handle below.
        shared = ray.cloudpickle.dumps((ray.put(job), bisection))
        self._bisection = bisection
        self.resources, self.seconds, self.metrics = resources, ActorSeconds(), DriverSource()
        self.actors = [make.remote(shared, resources.threads, load) for _ in range(resources.actors)]

    def close(self) -> None:
        """Kill the actors."""
        import ray

        self.seconds.ended_all()
        for actor in self.actors:
            with contextlib.suppress(Exception):  # the session may be gone
                ray.kill(actor, no_restart=True)

    def note_start(self, actor: int, taken: Mapping[str, float]) -> None:
        """The actor's life, which is paid for, began with its process. ``taken``: seconds of its stages since then."""
        self.seconds.started(actor, gpus=self.resources.gpus, cpus=self.resources.cpus, ago=sum(taken.values()))

    def ready(self, actor: int) -> Any:
        """A reference that resolves once the actor has loaded its model."""
        return self.actors[actor].ready.options(concurrency_group="control").remote()

    def run(self, given: Assignment, unit: PreparedUnit) -> Any:
        """A reference to what :meth:`GenerateActor.run` returns."""
        method = self.actors[given.actor].run.options(concurrency_group="units")
        return method.remote(unit.unit.to_json(), given.execution, unit.block)

    def drop(self, given: Assignment) -> None:
        """See :meth:`GenerateActor.drop`."""
        self.actors[given.actor].drop.options(concurrency_group="control").remote(given.unit_id, given.execution)


@dataclass(frozen=True, kw_only=True)
class _Ready:
    actor: int
    taken: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _Result:
    given: Assignment
    record: str | None


@dataclass(frozen=True, kw_only=True)
class _Failed:
    error: BaseException


_Event = _Ready | _Result | _Failed | PreparedUnit | None
"""None: there are no more units."""


def generate(pool: Pool, units: Generator[PreparedUnit, None, None], held: int) -> Iterator[CommitRecord]:
    """Run units on the actors; yields the commit record of each unit once, in the order in which they finish.

    Args:
        pool: the actors.
        units: drawn from in a thread of its own; a bounded number of them waits.
        held: units that each actor works on at once.
    """
    # A quarter more are queued on the actor, so that the next unit starts as soon as one finishes.
    dispatcher = Dispatcher(held=held + max(1, held // 4), max_overtakes=_prefetch_limit(pool, held))
    pool.metrics.dispatcher = dispatcher
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    room = threading.Semaphore(_prefetch_limit(pool, held))
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(units, events, room, stop), name="prefetch", daemon=True)
    prepared: dict[str, PreparedUnit] = {}
    for actor in range(len(pool.actors)):
        _when_done(pool.ready(actor), events, partial(_ready, actor))
    reader.start()
    any_ready = False
    try:
        while not dispatcher.finished:
            event = _next(events)
            now = time.monotonic()
            if isinstance(event, _Failed):
                raise event.error
            if isinstance(event, _Ready):
                dispatcher.join(event.actor, now)
                pool.note_start(event.actor, event.taken)
                _tell(event.taken, first=not any_ready)
                any_ready = True
            elif isinstance(event, PreparedUnit):
                prepared[event.unit.unit_id] = event
                dispatcher.offer(event.unit.unit_id, event.histogram)
            elif isinstance(event, _Result):
                yield from _settle(dispatcher, pool, event, prepared, now)
            elif event is None:
                dispatcher.end_input()
            while (given := dispatcher.next(now)) is not None:
                if given.execution == 0:
                    room.release()
                _when_done(pool.run(given, prepared[given.unit_id]), events, partial(_result, given))
    finally:
        stop.set()
        room.release()
        reader.join(_END_SECONDS)


def _prefetch_limit(pool: Pool, held: int) -> int:
    """How many prefetched units may wait for an actor: as many as the actors hold, and enough to choose from."""
    return len(pool.actors) * max(held, _MIN_PREFETCHED)


def _settle(
    dispatcher: Dispatcher, pool: Pool, result: _Result, prepared: dict[str, PreparedUnit], now: float
) -> Iterator[CommitRecord]:
    """Record a result: if it is the first one of its unit, drop the other execution and yield the commit record."""
    given = result.given
    if result.record is None:
        dispatcher.decline(given.unit_id, given.actor)
        return
    losers = dispatcher.done(given.unit_id, given.actor, now)
    if losers is None:
        return
    del prepared[given.unit_id]
    for loser in losers:
        pool.drop(loser)
    yield CommitRecord.from_json(result.record)


class _Timeout:
    """No event came in time."""


def _next(events: queue.SimpleQueue[_Event]) -> _Event | _Timeout:
    try:
        return events.get(timeout=_POLL_SECONDS)
    except queue.Empty:
        return _Timeout()


def _read(
    units: Generator[PreparedUnit, None, None],
    events: queue.SimpleQueue[_Event],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    try:
        with contextlib.closing(units):
            for unit in units:
                events.put(unit)
                room.acquire()
                if stop.is_set():
                    return
        events.put(None)
    except BaseException as error:
        events.put(_Failed(error=error))


def _ready(actor: int, taken: Mapping[str, float]) -> _Event:
    return _Ready(actor=actor, taken=taken)


def _tell(taken: Mapping[str, float], *, first: bool) -> None:
    """Say what the start of an actor was made of; of the first one only, the others are alike."""
    if first:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items())
        stages.announce(f"first engine ready ({parts})")


def _result(given: Assignment, record: str | None) -> _Event:
    return _Result(given=given, record=record)


def _when_done(reference: Any, events: queue.SimpleQueue[_Event], event: Callable[[Any], _Event]) -> None:
    """Queue ``event(value)`` once ``reference`` resolves, or a :class:`_Failed` if it resolves to an error."""

    def put_event(future: Any) -> None:
        error = future.exception()
        events.put(event(future.result()) if error is None else _Failed(error=error))

    reference.future().add_done_callback(put_event)
