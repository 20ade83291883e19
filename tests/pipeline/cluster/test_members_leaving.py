"""Actors that have to go: they finish units in time, return the rest, and are replaced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.members import Members
from pipeline.cluster.node_watch import NodeTable
from pipeline.cluster.resources import ActorResources
from pipeline.worker.notice import SIGTERM

BUDGET, HELD = 20.0, 3


class Actors:
    """Numbers actors, and notes who was ended."""

    def __init__(self, count: int) -> None:
        self.resources = {"": ActorResources(actors=count, least=count, cpus=1, gpus=1, threads=1)}
        self.names = dict.fromkeys(range(count), "")
        self.ended: list[int] = []

    def start(self, pool: str) -> int:
        number = 1 + max(self.names, default=-1)
        self.names[number] = pool
        return number

    def end(self, actor: int) -> None:
        self.ended.append(actor)

    def begun(self) -> set[int]:
        return set(self.names)


class Cluster:
    """Two actors on nodes "a" and "b" hold three units each of eight."""

    def __init__(self) -> None:
        self.actors = Actors(2)
        self.dispatcher = Dispatcher(held=HELD, max_overtakes=10)
        self.members = Members(self.actors, self.dispatcher, {"": HELD}, 0.0, drain_seconds=BUDGET)
        for unit in range(8):
            self.dispatcher.offer(f"u{unit}", {})
        self.dispatcher.end_input()
        for actor, node in enumerate("ab"):
            self.members.place(actor, node, 0.0)
            self.members.join(actor, {}, 0.0)
        self.given = list(self.give(0.0))

    def give(self, now: float) -> Iterator[tuple[int, str]]:
        while (given := self.dispatcher.next(now)) is not None:
            yield given.actor, given.unit_id

    def units_of(self, actor: int) -> list[str]:
        return [unit for name, unit in self.given if name == actor]


@pytest.fixture
def simulated() -> Cluster:
    simulated = Cluster()
    assert [len(simulated.units_of(actor)) for actor in (0, 1)] == [HELD, HELD]
    return simulated


def test_an_actor_with_notice_takes_no_new_unit_and_leaves_when_it_has_done_its_own(simulated: Cluster) -> None:
    simulated.members.notice(0, SIGTERM, 1.0)
    for unit in simulated.units_of(0):
        assert 0 not in simulated.actors.ended
        assert simulated.dispatcher.done(unit, 0, 2.0) == []
        assert list(simulated.give(2.0)) == [], "the other one is full, and this one takes nothing"
        simulated.members.settle(2.0)
    assert simulated.actors.ended == [0]
    assert simulated.dispatcher.waiting == 2, "nothing was handed back"
    assert 0 not in simulated.members


def test_what_is_not_done_in_time_is_handed_back_and_goes_next(simulated: Cluster) -> None:
    first, *rest = simulated.units_of(0)
    simulated.members.notice(0, SIGTERM, 1.0)
    simulated.dispatcher.done(first, 0, 5.0)
    simulated.members.settle(1.0 + BUDGET - 0.1)
    assert simulated.actors.ended == []
    simulated.members.settle(1.0 + BUDGET)
    assert simulated.actors.ended == [0]
    for unit in simulated.units_of(1):
        simulated.dispatcher.done(unit, 1, 30.0)
    assert [unit for _, unit in simulated.give(30.0)][:2] == rest, "before units that nobody has begun"


def test_another_actor_is_asked_for_as_soon_as_one_has_to_go(simulated: Cluster) -> None:
    simulated.members.adjust(2, 0.5)
    assert set(simulated.actors.names) == {0, 1}
    simulated.members.notice(0, SIGTERM, 1.0)
    simulated.members.adjust(2, 2.0)
    assert set(simulated.actors.names) == {0, 1, 2}
    simulated.members.adjust(2, 4.0)
    assert set(simulated.actors.names) == {0, 1, 2}, "one for one"
    assert simulated.members.ready_actors == (1,)


def test_a_lost_node_hands_back_at_once_and_a_late_result_still_counts_once(simulated: Cluster) -> None:
    late, *_ = simulated.units_of(0)
    simulated.members.see(NodeTable(alive=frozenset({"b"}), dead=frozenset({"a"})), 3.0)
    assert simulated.actors.ended == [0]
    assert simulated.dispatcher.waiting == 2 + HELD
    assert simulated.dispatcher.done(late, 0, 4.0) == [], "it had staged the unit before it was lost"
    assert simulated.dispatcher.waiting == 2 + HELD - 1
    assert simulated.dispatcher.done(late, 0, 5.0) is None, "a second time it is ignored"


def test_all_nodes_may_go_and_the_work_waits_for_others(simulated: Cluster) -> None:
    simulated.members.see(NodeTable(alive=frozenset(), dead=frozenset({"a", "b"})), 3.0)
    assert sorted(simulated.actors.ended) == [0, 1]
    assert list(simulated.give(3.0)) == []
    assert not simulated.dispatcher.finished
    simulated.members.adjust(8, 4.0)
    assert set(simulated.actors.names) == {0, 1, 2, 3}
    simulated.members.place(3, "c", 60.0)
    simulated.members.join(3, {}, 60.0)
    assert len(list(simulated.give(60.0))) == HELD


def test_an_actor_that_comes_up_with_notice_gets_nothing(simulated: Cluster) -> None:
    simulated.members.notice(1, SIGTERM, 1.0)
    simulated.members.adjust(2, 2.0)
    simulated.members.see(NodeTable(alive=frozenset("abc"), draining={"c": float("inf")}), 3.0)
    simulated.members.place(2, "c", 4.0)
    assert simulated.actors.ended == [2], "before it has joined"
