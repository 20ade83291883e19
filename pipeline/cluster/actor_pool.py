"""The driver loop that feeds the generate actors: carries out the dispatcher's decisions with Ray."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

from pipeline import stages
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.leaving import Leaving
from pipeline.cluster.members import Members
from pipeline.cluster.node_watch import NodeWatch
from pipeline.cluster.nodes import NodeTable
from pipeline.cluster.pool import Pool
from pipeline.cluster.pool_events import (
    Event,
    Events,
    Failed,
    Ready,
    Result,
    Silence,
    next_event,
    read_units,
    when_done,
)
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.room import Room
from pipeline.cluster.watching import Watched, Watching
from pipeline.stopping import Stop
from pipeline.types import CommitRecord
from pipeline.worker.crash_bisection import QUARANTINED

__all__ = ["generate"]

_MIN_PREFETCHED = 8
"""Prefetched units per actor, at least: with fewer the dispatcher has too few to choose a matching prefix from."""
_END_SECONDS = 10.0
"""How long a job that ends early waits for its prefetch thread."""
_STOP_SECONDS = 0.2
"""The same of a job that was asked to stop."""


def generate(
    pool: Pool,
    units: Generator[PreparedUnit | None, None, None],
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
        units: drawn from in a thread of its own; a bounded number of them waits. None: nothing is there yet.
        held: units that each actor of a pool works on at once.
        count: how many units there are.
        stop: once asked, no unit is given out; those in flight are waited for, but not for longer than it says.
        starts: filled with the seconds of each stage of the start of every actor.
        refit: see :class:`Members`.
        nodes: says which nodes go; None if none ever does.
        drain_seconds: in which an actor that has to go may finish units.
    """
    loop = _Loop(pool, held, count, stop, refit, drain_seconds)
    reader = threading.Thread(target=read_units, args=(units, loop.events, loop.room), name="prefetch", daemon=True)
    unlisten = nodes.listen(loop.events.put) if nodes is not None else lambda: None
    reader.start()
    try:
        while not loop.is_over:
            event = next_event(loop.events)
            now = time.monotonic()
            if pool.closed or (stop.asked and isinstance(event, Failed)):
                break  # the next run meets it again, if it lasts
            yield from loop.take(event, now)
            loop.go_on(now)
    finally:
        if starts is not None:
            starts += loop.members.starts
        unlisten()
        loop.room.close()
        reader.join(_STOP_SECONDS if stop.asked else _END_SECONDS)


class _Loop:
    """What the loop knows: the units that were read, the actors, and who has which unit.

    Attributes:
        events: what happens comes here.
        room: for units that were read and that no actor has.
        members: the actors.
    """

    def __init__(
        self,
        pool: Pool,
        held: Mapping[str, int],
        count: int,
        stop: Stop,
        refit: Callable[[], Mapping[str, int]] | None,
        drain_seconds: float,
    ) -> None:
        self._pool, self._stop, self._left = pool, stop, count
        # A quarter more are queued on the actor, so that the next unit starts as soon as one finishes.
        most = {name: own + max(1, own // 4) for name, own in held.items()}
        self._each = max(_MIN_PREFETCHED, *held.values())
        actors = sum(own.actors for own in pool.resources.values())
        self._dispatcher = Dispatcher(held=max(most.values()), max_overtakes=actors * self._each)
        pool.metrics.dispatcher = self._dispatcher
        self.events: Events = queue.SimpleQueue()
        # As many prefetched units may wait for an actor as the actors hold, and enough to choose from.
        self._always = max(1, sum(own.least for own in pool.resources.values()))
        self.room = Room(self._always * self._each)
        self._prepared: dict[str, PreparedUnit] = {}
        self._fresh: set[str] = set()
        """Units that were never given to an actor."""
        self._watching = Watching(pool, self.events.put)
        self.members = pool.metrics.members = Members(
            pool, self._dispatcher, most, time.monotonic(), self._watch, refit
        )
        self._leaving = Leaving(self.members, drain_seconds)
        self._quarantined, self._announced = 0, 1

    @property
    def is_over(self) -> bool:
        """Whether all is done, or nobody wants it any more.

        A run that was asked to stop is over once it has no units in flight, or these have had their time.
        """
        if self._dispatcher.finished or self._pool.closed:
            return True
        return self._stop.asked and (not self._dispatcher.running or self._stop.overdue)

    def take(self, event: Event | Silence, now: float) -> Iterator[CommitRecord]:
        """Take up an event; yields the record of a unit that it brings.

        Raises:
            BaseException: an actor's or the prefetch thread's error.
        """
        if isinstance(event, Failed):
            if event.actor is None or event.actor in self.members:
                raise event.error
        elif isinstance(event, Ready):
            self._join(event, now)
        elif isinstance(event, PreparedUnit):
            self._prepared[event.unit.unit_id] = event
            self._fresh.add(event.unit.unit_id)
            self._dispatcher.offer(event.unit.unit_id, event.histogram, first=event.unit.stage > 0)
        elif isinstance(event, Result):
            self.members.touch(event.given.actor, now)
            yield from self._settle(event, now)
        elif isinstance(event, NodeTable):
            self._leaving.seen(event, now)
        elif isinstance(event, Watched):
            self._watching.take(event, self.members, self._leaving, now)
        elif event is None:
            self._dispatcher.end_input()

    def go_on(self, now: float) -> None:
        """Do what follows: let actors go, give units out, ask for actors."""
        self._leaving.settle(now)
        self._watching.again(self.members, now)
        if not self._stop.asked:
            self._give(now)
            self.members.adjust(self._left - self._dispatcher.running, now)

    def _watch(self, actor: int) -> None:
        """Be told when an actor that was asked for is ready, where it is, and when it has to go."""
        when_done(self._pool.ready(actor), self.events, lambda taken: Ready(actor=actor, taken=taken), actor)
        self._watching.begin(actor)

    def _join(self, event: Ready, now: float) -> None:
        if event.actor not in self.members:
            return
        if not self.members.starts:  # the others are alike
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in event.taken.items())
            stages.announce(f"first engine ready ({parts})")
        self._pool.note_start(event.actor, event.taken)
        self.members.join(event.actor, event.taken, now)
        self.room.resize(max(self._always, self.members.ready) * self._each)

    def _settle(self, result: Result, now: float) -> Iterator[CommitRecord]:
        """Record a result: if it is the first of its unit, drop the other execution and yield the commit record."""
        given = result.given
        if result.record is None:
            self._dispatcher.decline(given.unit_id, given.actor)
            return
        losers = self._dispatcher.done(given.unit_id, given.actor, now)
        if losers is None:
            return
        del self._prepared[given.unit_id]
        for loser in losers:
            self._pool.drop(loser)
        self._left -= 1
        record = CommitRecord.from_json(result.record)
        self._tell_of_quarantine(record)
        yield record

    def _tell_of_quarantine(self, record: CommitRecord) -> None:
        """Log how many rows were quarantined so far: the first ones, and each time that their number has doubled."""
        self._quarantined += record.failures.get(QUARANTINED, 0)
        if self._quarantined >= self._announced:
            self._announced = 2 * self._quarantined
            rows = f"{self._quarantined} row{'s' * (self._quarantined > 1)}"
            stages.announce(f"{rows} killed their process and were quarantined; the others go on")

    def _give(self, now: float) -> None:
        """Give waiting units to the actors that have room."""
        while not self._stop.asked and (given := self._dispatcher.next(now)) is not None:
            if given.unit_id in self._fresh:
                self._fresh.remove(given.unit_id)
                self.room.release()
            self.members.touch(given.actor, now)
            call = self._pool.run(given, self._prepared[given.unit_id])
            when_done(call, self.events, partial(_result, given), given.actor)


def _result(given: Assignment, record: str | None) -> Event:
    return Result(given=given, record=record)
