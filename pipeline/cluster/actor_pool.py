"""The driver loop that feeds the generate actors: carries out the dispatcher's decisions with Ray."""

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
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.leaving import Leaving
from pipeline.cluster.members import Members
from pipeline.cluster.node_watch import NodeWatch
from pipeline.cluster.nodes import NodeTable
from pipeline.cluster.pool import Pool
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.room import Room
from pipeline.cluster.watching import Watched, Watching
from pipeline.stopping import Stop
from pipeline.types import CommitRecord

__all__ = ["generate"]

_MIN_PREFETCHED = 8
"""Prefetched units per actor, at least: with fewer the dispatcher has too few to choose a matching prefix from."""
_END_SECONDS = 10.0
"""How long a job that ends early waits for its prefetch thread."""
_STOP_SECONDS = 0.2
"""The same of a job that was asked to stop."""
_POLL_SECONDS = 0.2
"""Longest wait for an event. A slow actor and a request to stop cause none, so both are looked at this often."""


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
    actor: int | None = None
    """Whose call it was; None: of the prefetch thread."""


_Event = _Ready | _Result | _Failed | Watched | NodeTable | PreparedUnit | None
"""None: there are no more units."""


def generate(
    pool: Pool,
    units: Generator[PreparedUnit, None, None],
    held: Mapping[str, int],
    count: int,
    stop: Stop,
    *,
    starts: list[Mapping[str, float]] | None = None,
    refit: Callable[[], Mapping[str, int]] | None = None,
    nodes: NodeWatch | None = None,
    drain_seconds: float = 0.0,
) -> Iterator[CommitRecord]:
    """Run units on the actors; yields the commit record of each unit once, in the order in which they finish.

    It begins as soon as the first actor is ready, asks for more and ends some as :class:`Members` decides.

    Args:
        pool: the actors.
        units: drawn from in a thread of its own; a bounded number of them waits.
        held: units that each actor of a pool works on at once.
        count: how many units there are.
        stop: once asked, no unit is given out; those in flight are waited for, but not for longer than it says.
        starts: filled with the seconds of each stage of the start of every actor.
        refit: see :class:`Members`.
        nodes: says which nodes go; None if none ever does.
        drain_seconds: in which an actor that has to go may finish units.
    """
    # A quarter more are queued on the actor, so that the next unit starts as soon as one finishes.
    most = {name: own + max(1, own // 4) for name, own in held.items()}
    each = max(_MIN_PREFETCHED, *held.values())
    actors = sum(own.actors for own in pool.resources.values())
    dispatcher = Dispatcher(held=max(most.values()), max_overtakes=actors * each)
    pool.metrics.dispatcher = dispatcher
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    # As many prefetched units may wait for an actor as the actors hold, and enough to choose from.
    always = max(1, sum(own.least for own in pool.resources.values()))
    room = Room(always * each)
    reader = threading.Thread(target=_read, args=(units, events, room), name="prefetch", daemon=True)
    prepared: dict[str, PreparedUnit] = {}
    fresh: set[str] = set()
    """Units that were never given to an actor."""
    left = count

    watching = Watching(pool, events.put)

    def watch(actor: int) -> None:
        _when_done(pool.ready(actor), events, partial(_ready, actor), actor)
        watching.begin(actor)

    members = pool.metrics.members = Members(pool, dispatcher, most, time.monotonic(), watch, refit)
    leaving = Leaving(members, drain_seconds)
    unlisten = nodes.listen(events.put) if nodes is not None else lambda: None
    reader.start()
    try:
        while not dispatcher.finished and not _is_drained(stop, dispatcher.running):
            event = _next(events)
            now = time.monotonic()
            if isinstance(event, _Failed):
                if stop.asked:
                    break  # the next run meets it again, if it lasts
                if event.actor is None or event.actor in members:
                    raise event.error
            elif isinstance(event, _Ready):
                if event.actor in members:
                    _tell(event.taken, first=not members.starts)
                    pool.note_start(event.actor, event.taken)
                    members.join(event.actor, event.taken, now)
                    room.resize(max(always, members.ready) * each)
            elif isinstance(event, PreparedUnit):
                prepared[event.unit.unit_id] = event
                fresh.add(event.unit.unit_id)
                dispatcher.offer(event.unit.unit_id, event.histogram)
            elif isinstance(event, _Result):
                members.touch(event.given.actor, now)
                for record in _settle(dispatcher, pool, event, prepared, now):
                    left -= 1
                    yield record
            elif isinstance(event, NodeTable):
                leaving.seen(event, now)
            elif isinstance(event, Watched):
                watching.take(event, members, leaving, now)
            elif event is None:
                dispatcher.end_input()
            leaving.settle(now)
            watching.again(members, now)
            while not stop.asked and (given := dispatcher.next(now)) is not None:
                if given.unit_id in fresh:
                    fresh.remove(given.unit_id)
                    room.release()
                members.touch(given.actor, now)
                _when_done(pool.run(given, prepared[given.unit_id]), events, partial(_result, given), given.actor)
            if not stop.asked:
                members.adjust(left - dispatcher.running, now)
    finally:
        if starts is not None:
            starts += members.starts
        unlisten()
        room.close()
        reader.join(_STOP_SECONDS if stop.asked else _END_SECONDS)


def _is_drained(stop: Stop, in_flight: int) -> bool:
    """Whether a run that was asked to stop has no units in flight any more, or these have had their time."""
    return stop.asked and (not in_flight or stop.overdue)


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
    room: Room,
) -> None:
    try:
        with contextlib.closing(units):
            for unit in units:
                events.put(unit)
                if not room.take():
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


def _when_done(
    reference: Any, events: queue.SimpleQueue[_Event], event: Callable[[Any], _Event], actor: int
) -> None:  # fmt: skip
    """Queue ``event(value)`` once ``reference`` resolves, or a :class:`_Failed` if it resolves to an error.

    Args:
        reference: to the result of a call of ``actor``.
        events: the queue.
        event: makes the event.
        actor: whom the call was for.
    """

    def put_event(future: Any) -> None:
        error = future.exception()
        events.put(event(future.result()) if error is None else _Failed(error=error, actor=actor))

    reference.future().add_done_callback(put_event)
