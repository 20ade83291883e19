"""The state of a pool for observers of the run: its actors, their stages, the load of their engines.

An actor reports its load with each unit. While no actor is ready, the crash bisection is asked for the stages of
starting processes, since every process knows it; an observer never waits for the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.cluster.bisection_actor import RemoteBisection
from pipeline.cluster.metrics import DriverSource
from pipeline.progress.snapshot import Actors, ExecutorState, Load, Stage

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
            return  # answers of several units may overtake each other
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
    """Reads how a pool does."""

    def __init__(
        self, source: DriverSource, bisection: RemoteBisection, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._bisection, self._clock = source, bisection, clock
        self._lock = threading.RLock()  # an answer that is there already is taken up within the question
        self._closed = False
        self._loads = EngineLoads()
        self._next_stages = 0.0
        self._phase = Stage.STARTING

    def read(self, asked: int, most: int) -> ExecutorState:
        """The state as far as it is known. To be called a few times a second, from any thread.

        ``asked``: actors that were asked for and have not ended; ``most``: that there may be.
        """
        with self._lock:
            members = self._source.members
            ready = () if members is None else members.ready_actors
            if self._closed:
                actors = Actors(most=most)
            else:
                self._loads.keep(set(ready))
                if not ready:
                    self._ask_stages()
                starting = asked if members is None else members.starting
                leaving = 0 if members is None else members.leaving
                actors = Actors(ready=len(ready), starting=starting, leaving=leaving, most=most)
            return ExecutorState(actors=actors, phase=self._phase, load=self._loads.total())

    def take(self, actor: int, load: Mapping[str, Any] | None) -> None:
        """Store the load that an actor reports with a unit; None if its engine reports none."""
        if load is not None:
            with self._lock:
                self._loads.take(actor, load)

    def close(self) -> None:
        """The actors are ended: ask no more, and count none of them."""
        with self._lock:
            self._closed = True

    def _ask_stages(self) -> None:
        now = self._clock()
        if now >= self._next_stages:
            self._next_stages = now + _STAGE_SECONDS
            self._bisection.reached().future().add_done_callback(self._take_stages)

    def _take_stages(self, future: Any) -> None:
        if future.exception() is not None:
            return
        with self._lock:
            phases = [_PHASES.get(stage, Stage.STARTING) for stage in future.result().values()]
            self._phase = max(phases, key=_ORDER.index, default=self._phase)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count
