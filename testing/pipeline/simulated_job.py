"""A job on simulated engines: the real dispatcher and the real queues of actors, a clock, and rows of known length."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.feeding import most_held, prefetched
from pipeline.codec import Request, SamplingParams
from pipeline.config import RunConfig
from pipeline.worker.engine_thread import RequestQueue
from pipeline.worker.lengths import OPENING, Kind, Lengths, kind_of

_TICK_SECONDS = 1.0
"""The driver looks so often for actors that hang, which report nothing."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRow:
    """A row that takes ``tokens`` steps of a slot; the pipeline sees its prompt and its parameters."""

    tokens: float
    prompt: tuple[int, ...] = (1,)
    params: SamplingParams = field(default_factory=SamplingParams)

    @cached_property
    def kind(self) -> Kind:
        """As the pipeline sees it."""
        return kind_of(self.prompt[:OPENING], len(self.prompt), self.params)


@dataclass(kw_only=True)
class _Engine:
    """``slots`` rows run at once, each for its tokens over ``speed``; half as many wait in the engine."""

    slots: int
    speed: float
    lengths: Lengths
    queue: RequestQueue
    waiting: list[str] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    """Row -> when it began."""


@dataclass(kw_only=True)
class JobTimes:
    """``ends``: when each row was done first, ascending; ``busy``: seconds of all slots in use; ``slots`` of all."""

    slots: int
    ends: list[float] = field(default_factory=list)
    busy: float = 0.0

    @property
    def seconds(self) -> float:
        """Until the last row was done."""
        return self.ends[-1]

    @property
    def last_rows(self) -> float:
        """Seconds between the end of the first 95% of rows and the end of the last row."""
        return self.seconds - self.ends[len(self.ends) * 19 // 20 - 1]

    @property
    def utilisation(self) -> float:
        """Share of slots in use, over the whole job; rows that are generated twice count twice."""
        return self.busy / (self.slots * self.seconds)


class SimulatedJob:
    """One run of a job.

    Args:
        config: decides slots, actors and the units that each holds.
        units: rows of each unit.
        speeds: tokens per second of a slot of each actor.
        ordered: whether the dispatcher knows the kinds of rows; without them units go as they come.
    """

    def __init__(
        self,
        config: RunConfig,
        units: Sequence[Sequence[SimulatedRow]],
        speeds: Sequence[float],
        *,
        ordered: bool = True,
    ) -> None:
        self._units, self._ordered = units, ordered
        self._slots = config.engine.max_num_seqs
        held = config.resolved_units_in_flight(max(map(len, units)))
        self._ahead = len(speeds) * prefetched(held)
        self._dispatcher = Dispatcher(held=most_held(held), max_overtakes=self._ahead)
        self._engines = [self._engine(speed) for speed in speeds]
        self._next, self._now = 0, 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, int, str]] = []
        """When a row of an engine ends."""
        self._left: dict[tuple[str, int], int] = {}
        """Rows of a unit's execution that are not done."""
        self._done: dict[str, float] = {}
        self.given: list[str] = []
        """Units in the given order."""
        for actor in range(len(speeds)):
            self._dispatcher.join(actor, 0.0)

    def run(self) -> JobTimes:
        """Run all units."""
        times = JobTimes(slots=self._slots * len(self._engines))
        self._go_on()
        while not self._dispatcher.finished:
            if self._events[0][0] > self._now + _TICK_SECONDS:
                self._now += _TICK_SECONDS
                self._go_on()
                continue
            self._now, _, actor, name = heapq.heappop(self._events)
            engine = self._engines[actor]
            if name in engine.running:
                times.busy += self._now - engine.running.pop(name)
                times.busy += self._end(actor, name)
                self._go_on()
        times.ends = sorted(self._done.values())
        assert len(times.ends) == sum(map(len, self._units))
        return times

    def _engine(self, speed: float) -> _Engine:
        lengths = Lengths()
        queue = RequestQueue(2 * self._slots, lengths)
        return _Engine(slots=self._slots, speed=speed, lengths=lengths, queue=queue)

    def _row(self, name: str) -> SimulatedRow:
        unit, _, row = name.split("/")
        return self._units[int(unit)][int(row)]

    def _end(self, actor: int, name: str) -> float:
        """A row has ended; returns the seconds that rows took which are dropped for it, of other executions."""
        unit, execution, row = name.split("/")
        engine, own = self._engines[actor], self._row(name)
        engine.lengths.learn(own.kind, round(own.tokens))
        self._done.setdefault(f"{unit}/{row}", self._now)
        self._left[unit, int(execution)] -= 1
        if self._left[unit, int(execution)]:
            return 0.0
        if self._ordered:
            self._dispatcher.learn(engine.lengths.take_news())
        return sum(map(self._drop, self._dispatcher.done(unit, actor, self._now) or ()))

    def _drop(self, loser: Assignment) -> float:
        engine = self._engines[loser.actor]
        begin = f"{loser.unit_id}/{loser.execution}/"
        self._left.pop((loser.unit_id, loser.execution))
        ended = [name for name in engine.running if name.startswith(begin)]
        return sum(self._now - engine.running.pop(name) for name in ended)

    def _go_on(self) -> None:
        """Offer units, give them out, and fill the slots."""
        while True:
            while self._next < len(self._units) and self._dispatcher.waiting < self._ahead:
                rows = self._units[self._next]
                self._dispatcher.offer(str(self._next), {}, [row.kind for row in rows] if self._ordered else ())
                self._next += 1
            if self._next == len(self._units):
                self._dispatcher.end_input()
            given = self._dispatcher.next(self._now)
            if given is None:
                break
            self._submit(given)
        for actor, engine in enumerate(self._engines):
            self._fill(actor, engine)

    def _submit(self, given: Assignment) -> None:
        rows = self._units[int(given.unit_id)]
        self._left[given.unit_id, given.execution] = len(rows)
        self.given.append(given.unit_id)
        for number, row in enumerate(rows):
            name = f"{given.unit_id}/{given.execution}/{number}"
            self._engines[given.actor].queue.put(
                Request(request_id=name, prompt_token_ids=row.prompt, params=row.params)
            )

    def _fill(self, actor: int, engine: _Engine) -> None:
        while len(engine.running) < engine.slots:
            while len(engine.queue) and len(engine.waiting) + len(engine.running) < engine.slots + engine.slots // 2:
                name = engine.queue.pop()[0].request_id
                if self._is_wanted(name):
                    engine.waiting.append(name)
            if not engine.waiting:
                return
            name = engine.waiting.pop(0)
            if self._is_wanted(name):
                engine.running[name] = self._now
                seconds = self._row(name).tokens / engine.speed if engine.speed else float("inf")
                heapq.heappush(self._events, (self._now + seconds, next(self._numbers), actor, name))

    def _is_wanted(self, name: str) -> bool:
        unit, execution, _ = name.split("/")
        return (unit, int(execution)) in self._left


def cut(rows: Sequence[SimulatedRow], unit_rows: int) -> list[Sequence[SimulatedRow]]:
    """Rows cut into units."""
    return [rows[first : first + unit_rows] for first in range(0, len(rows), unit_rows)]


def skewed_rows(seed: int, count: int, *, median: int, most: int, learned: bool) -> list[SimulatedRow]:
    """Rows of log-normal lengths with a sigma of 1, cut at ``most``.

    ``learned``: the template of a row, one of 20, decides half of the variance of its length, and nothing else is known
    of it. Else a row's ``max_tokens`` is its length.
    """
    draw = random.Random(seed)
    half = math.sqrt(0.5)
    templates = [(draw.gauss(0, half), tuple(draw.randrange(99) for _ in range(OPENING))) for _ in range(20)]
    rows = []
    for _ in range(count):
        known, prompt = draw.choice(templates)
        nats = (known if learned else draw.gauss(0, half)) + draw.gauss(0, half)
        tokens = min(most, max(1, round(median * math.exp(nats))))
        params = SamplingParams(max_tokens=most if learned else tokens, ignore_eos=not learned)
        rows.append(SimulatedRow(tokens=tokens, prompt=prompt if learned else (1,), params=params))
    return rows


def without_hints(rows: Sequence[SimulatedRow]) -> list[SimulatedRow]:
    """The same lengths, unknown to the dispatcher."""
    return [SimulatedRow(tokens=row.tokens) for row in rows]
