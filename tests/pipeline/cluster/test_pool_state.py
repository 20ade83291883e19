"""A pool's state for observers: whom they ask, how often, and how they read the answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from pipeline.cluster.metrics import DriverSource, engine_load
from pipeline.cluster.pool_state import EngineLoads, PoolState
from pipeline.progress.snapshot import Stage
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

    def __init__(self, clock: Callable[[], float], *, at_once: Any = None) -> None:
        self.metrics, self.most, self.bisection = DriverSource(), 4, self
        self.actors: dict[int, Any] = {0: None, 1: None}
        self.asked: list[tuple[int, Reference]] = []
        self.stages: list[Reference] = []
        self.at_once = at_once
        self.state = PoolState(self, clock)

    def engine_load(self, actor: int) -> Reference:
        reference = Reference()
        if self.at_once is not None:
            reference.future().set_result(self.at_once)
        self.asked.append((actor, reference))
        return reference

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
    assert pool.state.read().phase is Stage.STARTING
    assert pool.state.read().actors.starting == 2
    assert len(pool.stages) == 1, "not asked again at once"
    pool.stages[-1].future().set_result({"x": "torch imported", "y": "kernels ready"})
    assert pool.state.read().phase is Stage.COMPILING
    clock.now += 1.0
    pool.state.read()
    pool.stages[-1].future().set_exception(RuntimeError("the actor died"))
    assert pool.state.read().phase is Stage.COMPILING, "an answer that fails changes nothing"


def test_an_actor_is_asked_again_only_after_its_answer_and_a_pause() -> None:
    clock = Clock()
    pool = Pool(clock)
    pool.metrics.members = members = Members()
    members.ready_actors = (7,)
    for _ in range(20):
        clock.now += 0.25
        pool.state.read()
    assert len(pool.asked) == 1, "the answer is awaited"
    pool.asked[0][1].future().set_result(answer("a", 10))
    for _ in range(20):
        clock.now += 0.25
        load = pool.state.read().load
    assert load is not None
    assert load.counters["tokens"] == 10
    assert len(pool.asked) == 2


def test_thousands_of_actors_are_asked_a_bounded_number_of_times() -> None:
    clock = Clock()
    pool = Pool(clock, at_once=answer("a", 1))
    pool.metrics.members = members = Members()
    members.ready_actors = tuple(range(1000))
    for _ in range(160):  # 40 seconds
        clock.now += 0.25
        pool.state.read()
    assert len(pool.asked) <= 1000 * (1 + 40 * 50 / 1000)


def test_nobody_is_asked_after_the_end() -> None:
    clock = Clock()
    pool = Pool(clock)
    pool.metrics.members = members = Members()
    members.ready_actors = (1,)
    pool.state.close()
    state = pool.state.read()
    assert (pool.asked, pool.stages, state.actors.ready) == ([], [], 0)


def test_an_engine_that_counts_nothing_gives_no_load() -> None:
    clock = Clock()
    pool = Pool(clock, at_once=engine_load(None, "a"))
    pool.metrics.members = members = Members()
    members.ready_actors = (1,)
    pool.state.read()
    assert pool.state.read().load is None
