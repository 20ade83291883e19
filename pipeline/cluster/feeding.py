"""The driver loop that feeds the generate actors: carries out the dispatcher's decisions with Ray.

Every event comes through one queue, as a function that handles it: from callbacks of Ray, from the threads that read
units, and from the watch of the cluster's nodes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline import stages
from pipeline.cluster.actor_pool import ActorPool
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.generate_actor import Answer, Sign
from pipeline.cluster.members import Members
from pipeline.cluster.node_watch import NodeTable, NodeWatch
from pipeline.cluster.prefetch import PreparedUnit, UnitReader
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


_Event = Callable[[float], list[CommitRecord]]
"""Handles an event at a time; returns the commit records of units that it finishes."""


def most_held(units: int) -> int:
    """Units given to an actor that works on ``units`` at once: a quarter more, so that the next one is at hand."""
    return units + max(1, units // 4)


def prefetched(units: int) -> int:
    """Units that wait for each actor when actors work on ``units`` at once."""
    return max(_MIN_PREFETCHED, _PREFETCHED * units)


class Feeding:
    """Feeds the units of a run to its actors; :class:`Members` decides when to start or end further actors.

    ``held``: units that each actor of a pool works on at once; ``count``: how many units there are. Once ``stop`` is
    asked, no unit is given out; units in flight may finish within the time that it allows. ``refit`` and
    ``drain_seconds`` are those of :class:`Members`.
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
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
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

    def run(
        self,
        units: Sequence[Generator[PreparedUnit, None, None]],
        nodes: NodeWatch,
        starts: list[Mapping[str, float]],
        end: Callable[[], None],
    ) -> Iterator[CommitRecord]:
        """Yield the commit record of each unit once, as units finish. It begins once the first actor is ready.

        Args:
            units: streams; a thread reads each, and a bounded number of its units waits.
            nodes: reports the nodes that go.
            starts: filled with the seconds of each stage of the start of every actor.
            end: ends streams that wait for results of other units.
        """
        unlisten = nodes.listen(lambda table: self._events.put(partial(self._see, table)))
        self._begin_reading(units)
        try:
            while not self._is_over:
                try:
                    records = self.take_event()
                except BaseException:
                    if self._pool.closed or self._stop.asked:
                        break  # the next run meets it again, if it lasts
                    raise
                yield from records
                if not self._pool.closed:
                    self._go_on()
        finally:
            starts += self.members.starts
            unlisten()
            self._end_reading(end)

    @property
    def _is_over(self) -> bool:
        """Whether all is done, or the run has stopped: no unit is in flight, or the time for these units is over."""
        if self._dispatcher.finished or self._pool.closed:
            return True
        return self._stop.asked and (not self._dispatcher.running or self._stop.overdue)

    def take_event(self) -> list[CommitRecord]:
        """Wait a while for an event and handle it; the commit records of units that it finishes.

        Raises:
            BaseException: an actor's or a prefetch thread's error.
        """
        try:
            event = self._events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return []
        return event(time.monotonic())

    def _see(self, nodes: NodeTable, now: float) -> list[CommitRecord]:
        self.members.see(nodes, now)
        return []

    def _go_on(self) -> None:
        """End actors that have to go, give units out, ask for actors."""
        now = time.monotonic()
        self.members.settle(now)
        if not self._stop.asked:
            self._give(now)
            self.members.adjust(self._left - self._dispatcher.running, now)
            self._allow_reading()

    # --- units in ---------------------------------------------------------------------------------------

    def _begin_reading(self, streams: Sequence[Generator[PreparedUnit, None, None]]) -> None:
        """Draw from each stream in a thread of its own."""

        def put(reader: UnitReader, found: PreparedUnit | BaseException | None) -> None:
            self._events.put(partial(self._take_unit, reader, found))

        self._reading = len(streams)
        self._readers = [UnitReader(units, put) for units in streams]
        self._allow_reading()

    def _end_reading(self, end: Callable[[], None]) -> None:
        """End the threads. ``end``: see :meth:`run`."""
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

    def _take_unit(
        self, reader: UnitReader, found: PreparedUnit | BaseException | None, now: float
    ) -> list[CommitRecord]:  # fmt: skip
        if isinstance(found, BaseException):
            raise found
        if found is None:
            self._reading -= 1
            if not self._reading:
                self._dispatcher.end_input()
            return []
        unit = found.unit
        self._prepared[unit.unit_id], self._fresh[unit.unit_id] = found, reader
        self._dispatcher.offer(unit.unit_id, found.histogram, found.kinds, first=unit.stage > 0)
        return []

    # --- units out --------------------------------------------------------------------------------------

    def _give(self, now: float) -> None:
        """Give waiting units to the actors that have room."""
        while not self._stop.asked and (given := self._dispatcher.next(now)) is not None:
            if (reader := self._fresh.pop(given.unit_id, None)) is not None:
                reader.allowed -= 1
            self.members.touch(given.actor, now)
            call = self._pool.run(given, self._prepared[given.unit_id])
            self._when_done(call, given.actor, partial(self._settle, given))

    def _settle(self, given: Assignment, answer: Answer | None, now: float) -> list[CommitRecord]:
        """Record an answer (None: the unit was declined or dropped): the first one of its unit gives its record."""
        self.members.touch(given.actor, now)
        if answer is None:
            self._dispatcher.decline(given.unit_id, given.actor)
            return []
        self._dispatcher.learn(answer.lengths)
        self._pool.state.take(given.actor, answer.load)
        losers = self._dispatcher.done(given.unit_id, given.actor, now)
        if losers is None:
            return []
        del self._prepared[given.unit_id]
        for loser in losers:
            self._pool.drop(loser)
        self._left -= 1
        record = CommitRecord.from_json(answer.record)
        self._report_quarantine(record)
        return [record]

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
        self._when_done(self._pool.watch(actor, known), actor, partial(self._hear, actor))

    def _hear(self, actor: int, sign: Sign, now: float) -> list[CommitRecord]:
        """Handle a sign of an actor, and ask for the next one."""
        if actor in self.members and sign.notice is not None:
            self.members.notice(actor, sign.notice, now)
        elif actor in self.members:
            self.members.place(actor, sign.node, now)
            if actor in self.members:
                self._watch(actor, sign.process)
                if not self.members.is_ready(actor):
                    self._join(actor, sign.taken, now)
        return []

    def _join(self, actor: int, taken: Mapping[str, float], now: float) -> None:
        if not self.members.starts:  # the others are alike
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items())
            stages.announce(f"first engine ready ({parts})")
        self._pool.note_start(actor, taken)
        self.members.join(actor, taken, now)

    def _when_done(self, reference: Any, actor: int, handle: Callable[[Any, float], list[CommitRecord]]) -> None:
        """Queue ``handle`` with the value of a call of ``actor``, or its error."""

        def put(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._events.put(partial(handle, future.result()))
            else:
                self._events.put(partial(self._fail, error, actor))

        reference.future().add_done_callback(put)

    def _fail(self, error: BaseException, actor: int, now: float) -> list[CommitRecord]:
        if actor in self.members:  # else it was ended
            raise error
        return []
