"""The driver loop that feeds the generate actors: carries out the dispatcher's decisions with Ray.

Every event comes through one queue: from callbacks of Ray, from the threads that read units, and from the watch of the
cluster's nodes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline import stages
from pipeline.cluster.actor_pool import ActorPool
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.generate_actor import Answer, Sign
from pipeline.cluster.members import Members
from pipeline.cluster.node_watch import NodeTable, NodeWatch
from pipeline.cluster.prefetch import PreparedUnit, UnitRead, UnitReader
from pipeline.stopping import Stop
from pipeline.types import CommitRecord
from pipeline.worker.crash_bisection import QUARANTINED

_POLL_SECONDS = 0.2
"""Longest wait for an event. A slow actor or a request to stop causes no event, so both are checked this often."""
_MIN_PREFETCHED = 8
"""Least prefetched units per actor: with fewer, the dispatcher rarely finds one with a matching prefix."""
_PREFETCHED = 4
"""Prefetched units per unit that an actor holds: with fewer, the longest rows begin too late and end alone."""
_END_SECONDS = 10.0
"""Seconds that a job that ends early waits for its prefetch threads."""
_STOP_SECONDS = 0.2
"""The same for a job that was asked to stop."""


@dataclass(frozen=True, kw_only=True)
class _Result:
    """A call came back with the answer of its actor; None if the unit was declined or dropped."""

    given: Assignment
    answer: Answer | None


@dataclass(frozen=True, kw_only=True)
class _Failed:
    """A call of ``actor`` ended with an error; with None, a reader of units did."""

    error: BaseException
    actor: int | None = None


class _Silence:
    """No event came in time."""


_Event = tuple[int, Sign] | _Result | _Failed | NodeTable | UnitRead
"""A pair: an actor and its sign."""


def most_held(units: int) -> int:
    """Units given to an actor that works on ``units`` at once: a quarter more, so that the next one is at hand."""
    return units + max(1, units // 4)


def prefetched(units: int) -> int:
    """Units that wait for each actor when actors work on ``units`` at once."""
    return max(_MIN_PREFETCHED, _PREFETCHED * units)


def generate(
    pool: ActorPool,
    units: Sequence[Generator[PreparedUnit, None, None]],
    held: Mapping[str, int],
    count: int,
    stop: Stop,
    *,
    end: Callable[[], None] = lambda: None,
    starts: list[Mapping[str, float]] | None = None,
    refit: Callable[[], Mapping[str, int]] | None = None,
    nodes: NodeWatch | None = None,
    drain_seconds: float = 0.0,
) -> Iterator[CommitRecord]:
    """Run units on the actors; yields the commit record of each unit once, as units finish.

    It begins once the first actor is ready. :class:`Members` decides when to start or end further actors.

    Args:
        pool: the actors.
        units: streams; a thread reads each, and a bounded number of its units waits.
        held: units that each actor of a pool works on at once.
        count: how many units there are.
        stop: once asked, no unit is given out; units in flight may finish within the time that it allows.
        end: ends streams that wait for results of other units.
        starts: filled with the seconds of each stage of the start of every actor.
        refit: see :class:`Members`.
        nodes: reports the nodes that go; None if none ever does.
        drain_seconds: see :class:`Members`.
    """
    loop = _Loop(pool, held, count, stop, refit, drain_seconds)
    unlisten = nodes.listen(loop.events.put) if nodes is not None else lambda: None
    loop.begin_reading(units)
    try:
        while not loop.is_over:
            event = loop.next_event()
            now = time.monotonic()
            if pool.closed or (stop.asked and isinstance(event, _Failed)):
                break  # the next run meets it again, if it lasts
            yield from loop.take(event, now)
            loop.go_on(now)
    finally:
        if starts is not None:
            starts += loop.members.starts
        unlisten()
        loop.end_reading(end)


class _Loop:
    """The state of the loop: the units that were read, the actors, and the units of each actor.

    Attributes:
        events: the queue of events.
        members: the actors.
    """

    def __init__(
        self,
        pool: ActorPool,
        held: Mapping[str, int],
        count: int,
        stop: Stop,
        refit: Callable[[], Mapping[str, int]] | None,
        drain_seconds: float,
    ) -> None:
        self._pool, self._stop, self._left = pool, stop, count
        most = {name: most_held(own) for name, own in held.items()}
        self._each = prefetched(max(held.values()))
        actors = sum(own.actors for own in pool.resources.values())
        self._dispatcher = Dispatcher(held=max(most.values()), max_overtakes=actors * self._each)
        pool.metrics.dispatcher = self._dispatcher
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._always = max(1, sum(own.least for own in pool.resources.values()))
        self._readers: list[UnitReader] = []
        self._reading = 0
        """Streams that have not ended."""
        self._prepared: dict[str, PreparedUnit] = {}
        self._fresh: dict[str, UnitReader] = {}
        """Units that were never given to an actor, with their reader."""
        self.members = pool.metrics.members = Members(
            pool, self._dispatcher, most, time.monotonic(), partial(self._watch, known=""), refit, drain_seconds
        )
        self._quarantined, self._announced = 0, 1

    @property
    def is_over(self) -> bool:
        """Whether all is done, or the run has stopped.

        A run that was asked to stop is over once no unit is in flight, or the time for these units is over.
        """
        if self._dispatcher.finished or self._pool.closed:
            return True
        return self._stop.asked and (not self._dispatcher.running or self._stop.overdue)

    def next_event(self) -> _Event | _Silence:
        """The next event, or a :class:`_Silence` if no event came in time."""
        try:
            return self.events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return _Silence()

    def take(self, event: _Event | _Silence, now: float) -> Iterator[CommitRecord]:
        """Handle an event; yields the commit record of a unit that it finishes.

        Raises:
            BaseException: an actor's or the prefetch thread's error.
        """
        if isinstance(event, _Failed):
            if event.actor is None or event.actor in self.members:
                raise event.error
        elif isinstance(event, tuple):
            self._hear(*event, now)
        elif isinstance(event, UnitRead):
            self._take_unit(event)
        elif isinstance(event, _Result):
            self.members.touch(event.given.actor, now)
            yield from self._settle(event, now)
        elif isinstance(event, NodeTable):
            self.members.see(event, now)

    def go_on(self, now: float) -> None:
        """End actors that have to go, give units out, ask for actors."""
        self.members.settle(now)
        if not self._stop.asked:
            self._give(now)
            self.members.adjust(self._left - self._dispatcher.running, now)
            self._allow_reading()

    # --- units in ---------------------------------------------------------------------------------------

    def begin_reading(self, streams: Sequence[Generator[PreparedUnit, None, None]]) -> None:
        """Draw from each stream in a thread of its own."""

        def put(read: UnitRead) -> None:
            self.events.put(read if read.error is None else _Failed(error=read.error))

        self._reading = len(streams)
        self._readers = [UnitReader(units, put) for units in streams]
        self._allow_reading()

    def end_reading(self, end: Callable[[], None]) -> None:
        """End the threads. ``end``: see :func:`generate`."""
        for reader in self._readers:
            reader.end()
        end()
        for reader in self._readers:
            reader.join(_STOP_SECONDS if self._stop.asked else _END_SECONDS)

    def _allow_reading(self) -> None:
        """Allow each stream enough waiting units for its actors, and for the dispatcher to choose from."""
        most = max(self._always, len(self.members.ready_actors)) * self._each
        for reader in self._readers:
            reader.allow(most)

    def _take_unit(self, event: UnitRead) -> None:
        if event.prepared is None:
            self._reading -= 1
            if not self._reading:
                self._dispatcher.end_input()
            return
        prepared, unit = event.prepared, event.prepared.unit
        self._prepared[unit.unit_id], self._fresh[unit.unit_id] = prepared, event.reader
        self._dispatcher.offer(unit.unit_id, prepared.histogram, prepared.kinds, first=unit.stage > 0)

    # --- units out --------------------------------------------------------------------------------------

    def _give(self, now: float) -> None:
        """Give waiting units to the actors that have room."""
        while not self._stop.asked and (given := self._dispatcher.next(now)) is not None:
            if (reader := self._fresh.pop(given.unit_id, None)) is not None:
                reader.allowed -= 1
            self.members.touch(given.actor, now)
            call = self._pool.run(given, self._prepared[given.unit_id])
            self._when_done(call, given.actor, partial(_result, given))

    def _settle(self, result: _Result, now: float) -> Iterator[CommitRecord]:
        """Record a result: if it is the first of its unit, drop the other execution and yield the commit record."""
        given = result.given
        if result.answer is None:
            self._dispatcher.decline(given.unit_id, given.actor)
            return
        self._dispatcher.learn(result.answer.lengths)
        self._pool.state.take(given.actor, result.answer.load)
        losers = self._dispatcher.done(given.unit_id, given.actor, now)
        if losers is None:
            return
        del self._prepared[given.unit_id]
        for loser in losers:
            self._pool.drop(loser)
        self._left -= 1
        record = CommitRecord.from_json(result.answer.record)
        self._report_quarantine(record)
        yield record

    def _report_quarantine(self, record: CommitRecord) -> None:
        """Log how many rows were quarantined so far: the first ones, and each time their number has doubled."""
        self._quarantined += record.failures.get(QUARANTINED, 0)
        if self._quarantined >= self._announced:
            self._announced = 2 * self._quarantined
            rows = f"{self._quarantined} row{'s' * (self._quarantined > 1)}"
            stages.announce(f"{rows} killed their process and were quarantined; the others go on")

    # --- actors -----------------------------------------------------------------------------------------

    def _watch(self, actor: int, known: str) -> None:
        """Ask an actor to report a process other than ``known``, or that its process has to end."""
        self._when_done(self._pool.watch(actor, known), actor, lambda sign: (actor, sign))

    def _hear(self, actor: int, sign: Sign, now: float) -> None:
        """Handle a sign of an actor, and ask for the next one."""
        if actor not in self.members:
            return
        if sign.notice is not None:
            self.members.notice(actor, sign.notice, now)
            return
        self.members.place(actor, sign.node, now)
        if actor not in self.members:
            return
        self._watch(actor, sign.process)
        if not self.members.is_ready(actor):
            self._join(actor, sign.taken, now)

    def _join(self, actor: int, taken: Mapping[str, float], now: float) -> None:
        if not self.members.starts:  # the others are alike
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items())
            stages.announce(f"first engine ready ({parts})")
        self._pool.note_start(actor, taken)
        self.members.join(actor, taken, now)

    def _when_done(self, reference: Any, actor: int, event: Callable[[Any], _Event]) -> None:
        """Queue ``event(value)`` once a call of ``actor`` has its value, or a :class:`_Failed` if it has an error."""

        def put(future: Any) -> None:
            error = future.exception()
            self.events.put(event(future.result()) if error is None else _Failed(error=error, actor=actor))

        reference.future().add_done_callback(put)


def _result(given: Assignment, answer: Answer | None) -> _Event:
    return _Result(given=given, answer=answer)
