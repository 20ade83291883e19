"""The generate actors of a run, and the loop that feeds them: what the dispatcher decides, done with Ray."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.generate_actor import GenerateActor
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.session import ActorResources
from pipeline.plan.job import Job
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import EngineLoader
from pipeline.worker.row_isolation import TallyLike

__all__ = ["Pool", "generate"]

_CONTROL_CALLS = 2
_CHOICE = 8
"""Units that wait for each actor at least."""
_END_SECONDS = 10.0
"""How long a job that ends early waits for its reading to end."""
_LOOK_SECONDS = 1.0
"""How often the end of the job is looked at: what is late becomes clear by nothing happening."""


class PooledGenerateActor(GenerateActor):
    """Gets its job by reference: ``shared`` is one, with the tally, pickled."""

    def __init__(self, shared: bytes, num_threads: int, load: EngineLoader) -> None:
        import ray

        job, tally = ray.cloudpickle.loads(shared)
        super().__init__(ray.get(job), num_threads, load, tally)


class Pool:
    """Ray actors, ended with the block.

    Args:
        job: what they do.
        resources: of each.
        load: makes their engines.
        tally: of deaths.
        held: units that each works on at once.
    """

    def __init__(
        self, job: Job, resources: ActorResources, load: EngineLoader, tally: TallyLike, held: int
    ) -> None:  # fmt: skip
        import ray

        groups = {"units": held, "control": _CONTROL_CALLS}
        kind: Any = ray.remote(concurrency_groups=groups)  # type: ignore[call-overload]  # which Ray's stubs lack
        make = kind(PooledGenerateActor).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_restarts=-1,
            max_task_retries=-1,  # the tally ends what cannot succeed
        )
        # Of references among the arguments Ray would warn that they may be lost before a restart. Pickled apart, the
        # job is kept for as long as the driver lives; the tally's actor is, for as long as its handle here.
        shared = ray.cloudpickle.dumps((ray.put(job), tally))
        self._tally = tally
        self.actors = [make.remote(shared, resources.threads, load) for _ in range(job.config.actors)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for actor in self.actors:
            with contextlib.suppress(Exception):  # the session may be gone
                ray.kill(actor, no_restart=True)

    def ready(self, actor: int) -> Any:
        """A reference that is there once the actor can work."""
        return self.actors[actor].ready.options(concurrency_group="control").remote()

    def run(self, given: Assignment, unit: PreparedUnit) -> Any:
        """A reference to what :meth:`GenerateActor.run` returns."""
        method = self.actors[given.actor].run.options(concurrency_group="units")
        return method.remote(unit.unit.to_json(), given.copy, unit.block)

    def drop(self, given: Assignment) -> None:
        """See :meth:`GenerateActor.drop`."""
        self.actors[given.actor].drop.options(concurrency_group="control").remote(given.unit_id, given.copy)


@dataclass(frozen=True, kw_only=True)
class _Ready:
    actor: int


@dataclass(frozen=True, kw_only=True)
class _Result:
    given: Assignment
    record: str | None


@dataclass(frozen=True, kw_only=True)
class _Failed:
    error: BaseException


_Event = _Ready | _Result | _Failed | PreparedUnit | None
"""None: all units have been read."""


def generate(pool: Pool, units: Generator[PreparedUnit, None, None], held: int) -> Iterator[CommitRecord]:
    """Run units on the actors; the record of each once, as they are done.

    Args:
        pool: the actors.
        units: read in a thread of its own, a bounded number ahead.
        held: units that each actor works on at once.
    """
    # A few more wait on the actor, so that a finished unit is followed at once.
    dispatcher = Dispatcher(held=held + max(1, held // 4), ahead=_look_ahead(pool, held))
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    room = threading.Semaphore(_look_ahead(pool, held))
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(units, events, room, stop), name="read-ahead", daemon=True)
    prepared: dict[str, PreparedUnit] = {}
    for actor in range(len(pool.actors)):
        _when_done(pool.ready(actor), events, partial(_ready, actor))
    reader.start()
    try:
        while not dispatcher.finished:
            event = _next(events)
            now = time.monotonic()
            if isinstance(event, _Failed):
                raise event.error
            if isinstance(event, _Ready):
                dispatcher.join(event.actor, now)
            elif isinstance(event, PreparedUnit):
                prepared[event.unit.unit_id] = event
                dispatcher.offer(event.unit.unit_id, event.sketch)
            elif isinstance(event, _Result):
                yield from _settle(dispatcher, pool, event, prepared, now)
            elif event is None:
                dispatcher.end_input()
            while (given := dispatcher.next(now)) is not None:
                if given.copy == 0:
                    room.release()
                _when_done(pool.run(given, prepared[given.unit_id]), events, partial(_result, given))
    finally:
        stop.set()
        room.release()
        reader.join(_END_SECONDS)


def _look_ahead(pool: Pool, held: int) -> int:
    """Units that are read and wait for an actor: as many as the actors hold, and enough to choose from."""
    return len(pool.actors) * max(held, _CHOICE)


def _settle(
    dispatcher: Dispatcher, pool: Pool, result: _Result, prepared: dict[str, PreparedUnit], now: float
) -> Iterator[CommitRecord]:
    """What follows from a result: its record, if it is the first one of its unit."""
    given = result.given
    if result.record is None:
        dispatcher.decline(given.unit_id, given.actor)
        return
    late = dispatcher.done(given.unit_id, given.actor, now)
    if late is None:
        return
    del prepared[given.unit_id]
    for run in late:
        pool.drop(run)
    yield CommitRecord.from_json(result.record)


class _Look:
    """Nothing happened for a while."""


def _next(events: queue.SimpleQueue[_Event]) -> _Event | _Look:
    try:
        return events.get(timeout=_LOOK_SECONDS)
    except queue.Empty:
        return _Look()


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


def _ready(actor: int, _: None) -> _Event:
    return _Ready(actor=actor)


def _result(given: Assignment, record: str | None) -> _Event:
    return _Result(given=given, record=record)


def _when_done(reference: Any, events: queue.SimpleQueue[_Event], event: Callable[[Any], _Event]) -> None:
    """Put an event once the value of ``reference`` is there; a failure where it is an error."""

    def tell(future: Any) -> None:
        error = future.exception()
        events.put(event(future.result()) if error is None else _Failed(error=error))

    reference.future().add_done_callback(tell)
