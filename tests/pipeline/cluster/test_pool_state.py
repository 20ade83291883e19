"""A pool's state for observers: the stages of starting actors, and the sums of the loads that units report."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from pipeline.cluster.metrics import DriverSource, engine_load
from pipeline.cluster.pool_state import EngineLoads, PoolState
from pipeline.progress.snapshot import ExecutorState, Stage
from wedlm_core.engine.scheduling.counters import EngineCounters, EngineSnapshot


def answer(process: str, tokens: int, used: int = 3) -> dict[str, Any]:
    snapshot = EngineSnapshot(
        counters=EngineCounters(tokens=tokens, forwards=tokens // 2), running=4, waiting=1, slots=8,
        kv_pages_used=used, kv_pages=10,
    )  # fmt: skip
    found = engine_load(snapshot, process)
    assert found is not None
    return found


class Reference:
    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self._future


class Members:
    def __init__(self) -> None:
        self.ready_actors: tuple[int, ...] = ()
        self.starting, self.leaving = 2, 0


class Pool:
    """A pool and a bisection whose answers the test gives."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.metrics = DriverSource()
        self.stages: list[Reference] = []
        self.state = PoolState(self.metrics, self, clock)  # type: ignore[arg-type]

    def read(self) -> ExecutorState:
        return self.state.read(2, 4)

    def reached(self) -> Reference:
        self.stages.append(Reference())
        return self.stages[-1]


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_the_sums_keep_what_processes_that_are_gone_have_counted() -> None:
    loads = EngineLoads()
    assert loads.total() is None
    loads.take(0, answer("a", 100))
    loads.take(1, answer("b", 50, used=7))
    total = loads.total()
    assert total is not None
    assert (total.actors, total.counters["tokens"], total.kv_share) == (2, 150, 0.5)
    loads.take(0, answer("a", 120))
    loads.take(1, answer("c", 10))  # the process died, and another one began
    loads.keep({1})
    loads.take(1, answer("c", 4))  # an earlier answer of the process, which took longer to arrive
    later = loads.total()
    assert later is not None
    assert (later.actors, later.counters["tokens"], later.kv_pages) == (1, 180, 10)
    loads.keep(set())
    last = loads.total()
    assert last is not None
    assert (last.actors, last.counters["tokens"], last.kv_share) == (0, 180, 0.0)


def test_the_gain_is_of_the_sums_over_all_actors() -> None:
    loads = EngineLoads()
    for actor, (decoding, autoregressive) in enumerate([(0.25, 0.25), (0.75, 2.75), (3.0, 3.0)]):
        counters = EngineCounters(decode_seconds=decoding, autoregressive_seconds=autoregressive)
        loads.take(actor, {**answer(str(actor), 1), "counters": asdict(counters)})
        total = loads.total()
        assert total is not None
        assert total.gain == [None, 3.0, 1.5][actor]


def test_before_an_actor_is_ready_the_stage_is_the_latest_that_one_has_reached() -> None:
    clock = Clock()
    pool = Pool(clock)
    assert pool.read().phase is Stage.STARTING
    assert pool.read().actors.starting == 2
    assert len(pool.stages) == 1, "not asked again at once"
    pool.stages[-1].future().set_result({"x": "torch imported", "y": "kernels ready"})
    assert pool.read().phase is Stage.COMPILING
    clock.now += 1.0
    pool.read()
    pool.stages[-1].future().set_exception(RuntimeError("the actor died"))
    assert pool.read().phase is Stage.COMPILING, "an answer that fails changes nothing"


def test_nobody_is_asked_after_the_end() -> None:
    clock = Clock()
    pool = Pool(clock)
    pool.metrics.members = members = Members()
    members.ready_actors = (1,)
    pool.state.close()
    state = pool.read()
    assert (pool.stages, state.actors.ready) == ([], 0)


def test_an_engine_that_counts_nothing_gives_no_load() -> None:
    pool = Pool(Clock())
    pool.state.take(0, engine_load(None, "a"))
    assert pool.read().load is None


def test_units_report_the_load_of_ready_actors() -> None:
    pool = Pool(Clock())
    pool.metrics.members = members = Members()
    members.ready_actors = (7,)
    pool.state.take(7, answer("a", 10))
    load = pool.read().load
    assert load is not None
    assert (load.actors, load.counters["tokens"]) == (1, 10)
    assert pool.stages == [], "not asked once an actor is ready"
