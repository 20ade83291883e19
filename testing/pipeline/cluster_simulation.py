"""A cluster of thousands of simulated actors, driven by the real dispatcher, scaler, index and ledger.

Discrete events: an actor is ready, an actor has finished a unit, a node is lost, a segment of the ledger is stored.
Time is simulated; the driver's work at each event runs for real, and its processor time delays later events, as in a
driver process. Ray itself is not here: the cost of its calls for a driver is an assumption (``call_seconds``), to be
measured apart.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipeline import layout
from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.members import Members
from pipeline.cluster.resources import ActorResources
from pipeline.commit.index import Index
from pipeline.commit.lease import hold_lease
from pipeline.commit.ledger import Ledger
from pipeline.progress.monitor import Monitor
from pipeline.storage.open import open_storage
from pipeline.types import CommitRecord, Slice, Totals, Unit

_POOL = ""
_TOKENS = 300


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job and a cluster.

    Attributes:
        actors: one GPU each.
        rows, unit_rows: of the job.
        row_seconds: of a GPU whose engine is full.
        row_latency: seconds from a unit's start to its end at least.
        held: units that an actor works on at once; a quarter more are queued on it.
        per_node: actors that a lost node takes along.
        lost_an_hour: share of the nodes.
        back_seconds: until a node takes a lost one's place.
        start_seconds: of an actor.
        put_seconds: of an object store, for a segment of the ledger.
        call_seconds: of the driver's processor, for each call of an actor: Ray's part.
        prefixes: distinct beginnings of the job's prompts, besides one that all share.
        seed: of the losses and of how long units take.
    """

    actors: int
    rows: int
    unit_rows: int = 256
    row_seconds: float = 1 / 16
    row_latency: float = 20.0
    held: int = 8
    per_node: int = 8
    lost_an_hour: float = 0.05
    back_seconds: float = 180.0
    start_seconds: float = 60.0
    put_seconds: float = 0.04
    call_seconds: float = 0.0
    prefixes: int = 1000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The time of a job.

    Attributes:
        seconds: simulated, from the first actor to the last commit.
        efficiency: GPU seconds of the rows over those of all actors that were there.
        driver_seconds: processor time of the driver by function.
        units, executions, lost_nodes: how many.
        commits: units by how often they were committed: all once.
        ledger_puts, ledger_bytes: segments.
        peak_bytes: growth of the process's memory.
    """

    seconds: float
    efficiency: float
    driver_seconds: dict[str, float]
    units: int
    executions: int
    lost_nodes: int
    commits: dict[int, int]
    ledger_puts: int
    ledger_bytes: int
    peak_bytes: int

    @property
    def driver_load(self) -> float:
        """Processor time of the driver over the simulated time."""
        return sum(self.driver_seconds.values()) / self.seconds


@dataclass(kw_only=True)
class _Actor:
    """An engine: units run one after the other at full speed, and none is faster than its rows' latency."""

    speed: float
    alive_since: float
    free_at: float = 0.0
    running: set[tuple[str, int]] = field(default_factory=set)


class _Pool:
    """The actors as :class:`Members` asks for them; each is ready some time after there is a node for it."""

    def __init__(self, cluster: _Cluster) -> None:
        self.resources = {
            _POOL: ActorResources(
                actors=cluster.scenario.actors, least=cluster.scenario.actors, cpus=1.0, gpus=1.0, threads=1
            )
        }
        self.names: dict[int, str] = {}
        self._cluster = cluster
        self._numbers = itertools.count()
        for _ in range(cluster.scenario.actors):
            self.start(_POOL)

    def start(self, pool: str) -> int:
        number = next(self._numbers)
        self.names[number] = pool
        self._cluster.ask(number)
        return number

    def end(self, actor: int) -> None:
        self.names.pop(actor, None)
        self._cluster.end(actor)

    def begun(self) -> set[int]:
        return set(self.names)


class _Cluster:
    """Events in order of time, and the actors that are there."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.now = scenario, 0.0
        self.events: list[tuple[float, int, str, object]] = []
        self.actors: dict[int, _Actor] = {}
        self.gpu_seconds, self.lost_nodes = 0.0, 0
        self._numbers = itertools.count()
        self._random = random.Random(scenario.seed)
        self._places = scenario.actors
        self._asked: deque[int] = deque()
        if scenario.lost_an_hour:
            self._next_loss()

    def at(self, when: float, kind: str, what: object = None) -> None:
        heapq.heappush(self.events, (when, next(self._numbers), kind, what))

    def ask(self, number: int) -> None:
        """An actor is asked for: it starts where there is a place, else waits for a node."""
        if self._places:
            self._places -= 1
            self.at(self.now + self.scenario.start_seconds * self._random.uniform(0.8, 1.2), "ready", number)
        else:
            self._asked.append(number)

    def place_back(self) -> None:
        self._places += 1
        if self._asked:
            self.ask(self._asked.popleft())

    def join(self, number: int) -> None:
        self.actors[number] = _Actor(speed=self._random.uniform(0.9, 1.1), alive_since=self.now)

    def end(self, number: int) -> None:
        actor = self.actors.pop(number, None)
        if actor is not None:
            self.gpu_seconds += self.now - actor.alive_since

    def run(self, given: Assignment) -> None:
        actor, scenario = self.actors[given.actor], self.scenario
        work = scenario.unit_rows * scenario.row_seconds / actor.speed * self._random.uniform(0.8, 1.2)
        actor.free_at = max(self.now + scenario.row_latency, actor.free_at + work, self.now + work)
        actor.running.add((given.unit_id, given.execution))
        self.at(actor.free_at, "done", given)

    def lose_node(self) -> list[int]:
        """Actors of a node that is gone; its place comes back later."""
        self._next_loss()
        gone = self._random.sample(sorted(self.actors), min(self.scenario.per_node, len(self.actors)))
        self.lost_nodes += bool(gone)
        for _ in gone:
            self.at(self.now + self.scenario.back_seconds, "back")
        return gone

    def _next_loss(self) -> None:
        nodes = self.scenario.actors / self.scenario.per_node
        self.at(self.now + self._random.expovariate(self.scenario.lost_an_hour * nodes / 3600), "lost")


class _Driver:
    """The loop of :func:`pipeline.cluster.feeding.generate` and the commits after it, event by event."""

    def __init__(self, scenario: Scenario, cluster: _Cluster, index: Index, ledger: Ledger) -> None:
        self.scenario, self.cluster, self.index, self.ledger = scenario, cluster, index, ledger
        most = scenario.held + max(1, scenario.held // 4)
        self._room = scenario.actors * max(8, scenario.held)
        self.dispatcher = Dispatcher(held=most, max_overtakes=self._room)
        self.members = Members(_Pool(cluster), self.dispatcher, {_POOL: most}, 0.0)
        self.tracker = Monitor()
        self.tracker.plan(scenario.rows, Totals(), 0)
        self.units, self.executions, self.left = 0, 0, 0
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.commits: Counter[str] = Counter()
        self._source: Iterator[Unit] = iter(())
        self._ended = False
        self._records: list[CommitRecord] = []
        self._storing = False
        self._random = random.Random(scenario.seed + 1)

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        begin = time.thread_time()
        try:
            yield
        finally:
            self.spent[on] += time.thread_time() - begin

    def plan(self) -> None:
        with self.spending("index: plan"):
            self.index.units.fill(_plan(self.scenario))
            self.index.units.mark_work(retry_failed=False)
        self.units = self.left = len(self.index.units)
        self._source = self.index.units.work()

    def handle(self, kind: str, what: object) -> None:
        now = self.cluster.now
        if kind == "ready" and isinstance(what, int) and what in self.members:
            self.cluster.join(what)
            with self.spending("members"):
                self.members.join(what, {}, now)
        elif kind == "lost":
            for actor in self.cluster.lose_node():
                with self.spending("members"):
                    self.members.end(actor)
        elif kind == "back":
            self.cluster.place_back()
        elif kind == "stored":
            self._storing = False
        elif kind == "done":
            assert isinstance(what, Assignment)
            self._done(what)
        self._offer()
        self._give()
        with self.spending("members"):
            self.members.adjust(self.left - self.dispatcher.running, now)
        self._commit()

    def _done(self, given: Assignment) -> None:
        actor = self.cluster.actors.get(given.actor)
        if actor is None or (given.unit_id, given.execution) not in actor.running:
            return  # it was lost, or dropped
        actor.running.remove((given.unit_id, given.execution))
        with self.spending("dispatcher"):
            losers = self.dispatcher.done(given.unit_id, given.actor, self.cluster.now)
        if losers is None:
            return
        for loser in losers:
            self.cluster.actors[loser.actor].running.discard((loser.unit_id, loser.execution))
        self._records.append(_record(given.unit_id, self.scenario))

    def _offer(self) -> None:
        while self.dispatcher.waiting < self._room and not self._ended:
            with self.spending("index: work"):
                unit = next(self._source, None)
            with self.spending("dispatcher"):
                if unit is None:
                    self._ended = True
                    self.dispatcher.end_input()
                else:
                    own = self._random.randrange(1, 1 + self.scenario.prefixes)
                    self.dispatcher.offer(unit.unit_id, {0: 64 * self.scenario.unit_rows, own: 512})

    def _give(self) -> None:
        while True:
            with self.spending("dispatcher"):
                given = self.dispatcher.next(self.cluster.now)
            if given is None:
                return
            self.executions += 1
            self.spent["calls of actors"] += self.scenario.call_seconds
            self.cluster.run(given)

    def _commit(self) -> None:
        """One segment is stored at a time; units done meanwhile go into the next one."""
        if self._storing or not self._records:
            return
        records, self._records = self._records, []
        with self.spending("ledger and index: commit"):
            before = self.ledger.commit(records)
        with self.spending("progress"):
            for record, earlier in zip(records, before, strict=True):
                self.tracker.add(record, earlier)
        self.commits.update(record.unit_id for record in records)
        self.left -= len(records)
        self._storing = True
        self.cluster.at(self.cluster.now + self.scenario.put_seconds, "stored")


def simulate(scenario: Scenario, folder: Path) -> Outcome:
    """Run the job to its end; the ledger is written to ``folder``."""
    process = psutil.Process()
    before = peak = process.memory_info().rss
    storage = open_storage(str(folder), layout.SCRATCH)
    with hold_lease(storage) as lease, Index() as index:
        ledger, _ = Ledger.load(storage, index.records, lease)
        cluster = _Cluster(scenario)
        driver = _Driver(scenario, cluster, index, ledger)
        driver.plan()
        events, busy_until = 0, 0.0
        while driver.left:
            when, _, kind, what = heapq.heappop(cluster.events)
            cluster.now = max(when, busy_until)
            spent = sum(driver.spent.values())
            driver.handle(kind, what)
            busy_until = cluster.now + sum(driver.spent.values()) - spent
            events += 1
            if events % 4096 == 0:
                peak = max(peak, process.memory_info().rss)
        for actor in list(cluster.actors):
            cluster.end(actor)
        segments = storage.sizes(layout.LEDGER)
        assert len(index.records) == driver.units
    return Outcome(
        seconds=cluster.now,
        efficiency=driver.units * scenario.unit_rows * scenario.row_seconds / cluster.gpu_seconds,
        driver_seconds=dict(driver.spent),
        units=driver.units,
        executions=driver.executions,
        lost_nodes=cluster.lost_nodes,
        commits=dict(Counter(driver.commits.values())),
        ledger_puts=len(segments),
        ledger_bytes=sum(segments.values()),
        peak_bytes=max(peak, process.memory_info().rss) - before,
    )


def _plan(scenario: Scenario) -> Iterator[Unit]:
    for number in range(-(-scenario.rows // scenario.unit_rows)):
        rows = Slice(file=number // 4096, first_row=number % 4096 * scenario.unit_rows, num_rows=scenario.unit_rows)
        yield Unit(unit_id=f"{number * 2654435761 % 2**96:024x}", index=number, rows=rows)


def _record(unit_id: str, scenario: Scenario) -> CommitRecord:
    rows = scenario.unit_rows
    return CommitRecord(
        unit_id=unit_id, file_key="part-000000.parquet", first_row=0, num_rows=rows, failed_rows=0, samples=rows,
        prompt_tokens=_TOKENS * rows, completion_tokens=_TOKENS * rows, decode_forwards=_TOKENS * rows // 4,
        rows_forwarded=2 * _TOKENS * rows, staged_bytes=1000 * rows, data_sha256="0" * 64, rows_sha256="0" * 64,
        input_sha256="0" * 64, engine_seconds=1.0,
    )  # fmt: skip
