"""From decisions to actors: requests, joins, leaves, and messages about actors that never come."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.cluster import members as members_module
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.members import Members
from pipeline.cluster.resources import ActorResources


class FakePool:
    """Numbers actors; whether there is a node for one is up to the test."""

    def __init__(self, **resources: ActorResources) -> None:
        self.resources = resources
        self.names: dict[int, str] = {}
        self.placed: set[int] = set()
        self.ended: list[int] = []

    def start(self, pool: str) -> int:
        number = len(self.names) + len(self.ended)
        self.names[number] = pool
        return number

    def end(self, actor: int) -> None:
        self.ended.append(actor)
        del self.names[actor]

    def begun(self) -> set[int]:
        return self.placed


def resources(most: int, least: int = 0, gpus: float = 0.0) -> ActorResources:
    return ActorResources(actors=most, least=least, cpus=1.0, gpus=gpus, threads=1, idle_seconds=10.0)


def test_a_run_grows_from_nothing_joins_and_gives_back() -> None:
    pool, dispatcher, watched = FakePool(a=resources(3)), Dispatcher(held=2, max_overtakes=8), []
    crowd = Members(pool, dispatcher, {"a": 2}, 0.0, watched.append)
    for number in range(4):
        dispatcher.offer(str(number), {})
    dispatcher.end_input()
    crowd.adjust(4, 0.0)
    assert watched == [0, 1]
    assert (0 in crowd, crowd.ready_actors) == (True, ())
    crowd.join(0, {"scheduled": 1.0, "model loaded": 2.0}, 1.0)
    given = [dispatcher.next(1.0), dispatcher.next(1.0)]
    assert all(run is not None and run.actor == 0 for run in given), "it begins with the first actor"
    crowd.join(1, {}, 2.0)
    runs = [run for run in (*given, dispatcher.next(2.0), dispatcher.next(2.0)) if run is not None]
    assert Counter(run.actor for run in runs) == {0: 2, 1: 2}
    for run in runs:
        if run.actor == 1:
            dispatcher.done(run.unit_id, 1, 3.0)
            crowd.touch(1, 3.0)
    crowd.adjust(0, 3.0)
    assert not pool.ended
    crowd.adjust(0, 30.0)
    assert not pool.ended, "the last idle one stays, for a backup"
    assert crowd.end(0) == [run.unit_id for run in runs if run.actor == 0]
    assert pool.ended == [0]
    assert 0 not in crowd
    assert dispatcher.waiting == 2
    assert len(crowd.starts) == 2


def test_pending_actors_are_withdrawn_when_no_unit_waits_for_them() -> None:
    pool, dispatcher = FakePool(a=resources(9)), Dispatcher(held=1, max_overtakes=8)
    crowd = Members(pool, dispatcher, {"a": 1}, 0.0)
    for number in range(3):
        dispatcher.offer(str(number), {})
    crowd.adjust(3, 0.0)
    assert sorted(pool.names) == [0, 1, 2]
    crowd.join(0, {}, 1.0)
    assert dispatcher.next(1.0) is not None
    crowd.adjust(1, 2.0)
    assert sorted(pool.names) == [0, 1]
    crowd.adjust(0, 3.0)
    assert sorted(pool.names) == [0]


def test_what_never_comes_is_said_in_one_line_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(members_module.stages, "announce", said.append)
    pool = FakePool(fast=resources(2, 2, gpus=1.0), slow=resources(1, 1))
    for name in ("fast", "fast", "slow"):
        pool.start(name)
    dispatcher = Dispatcher(held=2, max_overtakes=8)
    crowd = Members(pool, dispatcher, {"fast": 2, "slow": 2}, 0.0)
    pool.placed = {1}
    for second in range(200):
        crowd.adjust(50, float(second))
    assert len(said) == 3
    assert said[0] == (
        "waiting for 1 actor of pool 'fast' for a node with room for 1 CPU and 1 GPU and for 1 actor of pool 'slow' "
        "for a node with room for 1 CPU and 0 GPU and for 1 to load their models; 0 at work"
    )


def test_a_range_follows_the_room_of_a_cluster_whose_nodes_come_and_go() -> None:
    pool, dispatcher, room = FakePool(a=resources(1)), Dispatcher(held=1, max_overtakes=8), {"a": 1}
    crowd = Members(pool, dispatcher, {"a": 1}, 0.0, refit=lambda: room)
    for number in range(9):
        dispatcher.offer(str(number), {})
    crowd.adjust(9, 0.0)
    assert len(pool.names) == 1
    room["a"] = 4
    crowd.adjust(9, 5.0)
    assert len(pool.names) == 1
    crowd.adjust(9, 11.0)
    assert len(pool.names) == 4
