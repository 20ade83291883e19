"""The state of a pool for observers of the run: its actors, their stages, the load of their engines.

Nothing is asked of anybody unless somebody watches. Then each ready actor is asked every few seconds for the sources of
its engine's metrics. The crash bisection is asked for the stages of starting processes, since every process knows it.
The answers come in whenever they do; who watches never waits for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pipeline.cluster.metrics import DriverSource
from pipeline.progress.snapshot import Actors, ExecutorState, Load, Stage

_LOAD_SECONDS = 1.0
"""An actor is asked so often, or more seldom where there are very many."""
_ASKED_PER_SECOND = 50
_STAGE_SECONDS = 0.2
_PHASES = {
    "torch imported": Stage.LOADING,
    "model fetched": Stage.LOADING,
    "model loaded": Stage.LOADING,
    "kernels ready": Stage.COMPILING,
    "step costs known": Stage.COMPILING,
    "draft kernels ready": Stage.COMPILING,
}
"""Stage of a starting process (:mod:`pipeline.stages`) -> stage of the run."""
_ORDER = list(Stage)


class _Bisection(Protocol):
    def reached(self) -> Any:
        """A reference to the latest stage of each process."""
        ...


class _Pool(Protocol):
    """The part of :class:`pipeline.cluster.actor_pool.ActorPool` that is used here."""

    metrics: DriverSource
    actors: dict[int, Any]

    @property
    def bisection(self) -> _Bisection:
        """Records the stages that starting processes have reached."""
        ...

    @property
    def most(self) -> int:
        """Actors that there may be."""
        ...

    def engine_load(self, actor: int) -> Any:
        """A reference to the result of :meth:`GenerateActor.engine_load`."""
        ...


class EngineLoads:
    """The last answers of the actors, added up. Knows no Ray."""

    def __init__(self) -> None:
        self._last: dict[int, Mapping[str, Any]] = {}
        self._before: dict[str, float] = {}
        """Counters of processes that are gone."""

    def take(self, actor: int, answer: Mapping[str, Any]) -> None:
        """Store an actor's answer. A new process of an actor does not lower the counts of the one before."""
        last = self._last.get(actor)
        if last is not None and last["process"] != answer["process"]:
            self._retire(last)
        elif last is not None and answer["counters"]["forwards"] < last["counters"]["forwards"]:
            return  # answers may overtake each other
        self._last[actor] = answer

    def keep(self, actors: set[int]) -> None:
        """Only these actors are there still."""
        for actor in [actor for actor in self._last if actor not in actors]:
            self._retire(self._last.pop(actor))

    def total(self) -> Load | None:
        """The sums; None if no actor ever answered."""
        answers = list(self._last.values())
        if not answers and not self._before:
            return None
        counters = dict(self._before)
        for answer in answers:
            _add(counters, answer["counters"])
        names = ("kv_pages_used", "kv_pages")
        return Load(actors=len(answers), counters=counters, **{n: sum(int(a[n]) for a in answers) for n in names})

    def _retire(self, answer: Mapping[str, Any]) -> None:
        _add(self._before, answer["counters"])


class PoolState:
    """Reads how a pool does.

    Args:
        pool: the actors.
        clock: seconds.
    """

    def __init__(self, pool: _Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._clock = pool, clock
        self._lock = threading.RLock()  # an answer that is there already is taken up within the question
        self._closed = False
        self._loads = EngineLoads()
        self._asked: dict[int, float] = {}
        """Actor -> when it was asked the last time; infinite while the answer is awaited."""
        self._next_stages = 0.0
        self._phase = Stage.STARTING

    def read(self) -> ExecutorState:
        """The state as far as it is known; asks for more. To be called a few times a second, from any thread."""
        source = self._pool.metrics
        with self._lock:
            members = source.members
            ready = () if members is None else members.ready_actors
            if not self._closed:
                self._ask(ready)
            if self._closed:
                actors = Actors(most=self._pool.most)
            elif members is None:
                actors = Actors(starting=len(self._pool.actors), most=self._pool.most)
            else:
                actors = Actors(ready=len(ready), starting=members.starting, leaving=members.leaving,
                                most=self._pool.most)  # fmt: skip
            return ExecutorState(actors=actors, phase=self._phase, load=self._loads.total())

    def take(self, actor: int, load: Mapping[str, Any] | None) -> None:
        """Store the load that an actor reports with a unit; None if its engine reports none."""
        if load is not None:
            with self._lock:
                self._loads.take(actor, load)

    def close(self) -> None:
        """Stop asking."""
        with self._lock:
            self._closed = True

    def _ask(self, ready: tuple[int, ...]) -> None:
        now = self._clock()
        if not ready and now >= self._next_stages:
            self._next_stages = now + _STAGE_SECONDS
            _when_answered(self._pool.bisection.reached(), self._take_stages)
        present = set(ready)
        self._loads.keep(present)
        self._asked = {actor: then for actor, then in self._asked.items() if actor in present}
        pause = max(_LOAD_SECONDS, len(ready) / _ASKED_PER_SECOND)
        for actor in ready:
            if now >= self._asked.get(actor, 0.0) + pause:
                self._asked[actor] = float("inf")
                _when_answered(self._pool.engine_load(actor), self._taker(actor))

    def _taker(self, actor: int) -> Callable[[Any], None]:
        def take(answer: Any) -> None:
            with self._lock:
                if actor in self._asked:
                    self._asked[actor] = self._clock()
                    if answer is not None:
                        self._loads.take(actor, answer)

        return take

    def _take_stages(self, answer: Any) -> None:
        with self._lock:
            phases = [_PHASES.get(stage, Stage.STARTING) for stage in (answer or {}).values()]
            self._phase = max(phases, key=_ORDER.index, default=self._phase)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def _when_answered(reference: Any, take: Callable[[Any], None]) -> None:
    """Call ``take`` with the value of ``reference``, or None after an error; in a thread of Ray's."""
    reference.future().add_done_callback(lambda future: take(None if future.exception() else future.result()))
