"""Who has to go and when at the latest: by notice, by a draining node, by a node that is gone."""

from __future__ import annotations

import time

import pytest

from pipeline.cluster import members as members_module
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.members import STALE_SECONDS, Members
from pipeline.cluster.node_watch import NodeTable
from pipeline.cluster.resources import ActorResources
from pipeline.worker.notice import SIGTERM

BUDGET = 20.0


class Actors:
    """Five actors, each with a unit that it never finishes; ``said``: the announcements."""

    def __init__(self) -> None:
        self.resources = {"": ActorResources(actors=5, least=5, cpus=1, gpus=0, threads=1)}
        self.names = dict.fromkeys(range(5), "")
        self.ended: list[int] = []
        self.said: list[str] = []
        dispatcher = Dispatcher(held=1, max_overtakes=9)
        self.members = Members(self, dispatcher, {"": 1}, 0.0, drain_seconds=BUDGET)
        for actor in range(5):
            self.members.join(actor, {}, 0.0)
            dispatcher.offer(str(actor), {})
        assert all(dispatcher.next(0.0) for _ in range(5))

    def start(self, pool: str) -> int:
        raise NotImplementedError

    def end(self, actor: int) -> None:
        self.ended.append(actor)

    def begun(self) -> set[int]:
        return set(self.names)

    def place(self, *nodes: str) -> None:
        for actor, node in enumerate(nodes):
            self.members.place(actor, node, 0.0)

    def ended_at(self, now: float) -> list[int]:
        """Actors that are ended by then, and were not before."""
        before = len(self.ended)
        self.members.settle(now)
        return sorted(self.ended[before:])


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Actors:
    made = Actors()
    monkeypatch.setattr(members_module.stages, "announce", made.said.append)
    return made


def table(*alive: str, draining: dict[str, float] | None = None, dead: frozenset[str] = frozenset(),
          expected: frozenset[str] = frozenset()) -> NodeTable:  # fmt: skip
    """``draining``: node -> seconds that it has left."""
    until = {node: time.time() + left for node, left in (draining or {}).items()}
    return NodeTable(alive=frozenset(alive), draining=until, dead=dead, expected=expected)


def test_an_actor_with_notice_has_the_budget_and_a_second_notice_gives_no_more(actors: Actors) -> None:
    actors.place("a")
    actors.members.notice(0, SIGTERM, 100.0)
    actors.members.notice(0, SIGTERM, 110.0)
    assert (actors.members.leaving, actors.ended_at(119.9), actors.ended_at(120.0)) == (1, [], [0])
    assert actors.said[0] == f"1 actor to leave ({SIGTERM}): 20 s for 1 unit"


def test_actors_of_a_draining_node_have_the_time_it_has_left_and_no_more_than_the_budget(actors: Actors) -> None:
    left = {"long": 600.0, "short": 10.0, "now": 1.0, "open": float("inf")}
    actors.place(*left, "stays")
    actors.members.see(table(*left, "stays", draining=left), 100.0)
    assert actors.said[0] == "4 actors to leave (the node is being drained): 0 s for 4 units", "one line for all"
    assert actors.ended == [2]
    left["long"] = 5.0  # its time became shorter
    actors.members.see(table(*left, "stays", draining=left), 101.0)
    assert [actors.ended_at(now) for now in (103.9, 104.1, 107.9, 108.1, 119.9, 120.1)] == [[], [0], [], [1], [], [3]]
    assert 4 in actors.members


def test_actors_whose_node_is_gone_are_lost_at_once(actors: Actors) -> None:
    actors.place("a", "b", "c")
    actors.members.see(table("a", "b", "c", draining={"b": 60.0}), 1.0)
    actors.members.see(table("c", dead=frozenset({"a", "b"}), expected=frozenset({"b"})), 5.0)
    assert sorted(actors.ended) == [0, 1]
    assert {"1 actor lost (the node was lost)", "1 actor lost (the node is gone)"} < set(actors.said)


def test_a_node_that_the_head_does_not_list_yet_is_not_lost(actors: Actors) -> None:
    actors.members.see(table("a"), 0.0)
    actors.place("new")
    actors.members.see(table("a"), 2.0)
    assert actors.members.leaving == 0


def test_an_actor_that_comes_up_on_a_node_that_goes_has_to_go_too(actors: Actors) -> None:
    actors.members.see(table("a", draining={"a": 60.0}, dead=frozenset({"b"})), 0.0)
    actors.place("a", "b")
    assert (actors.ended, actors.members.leaving) == ([1], 1)


def test_a_notice_that_is_older_than_any_platform_gives_does_not_count_any_more(actors: Actors) -> None:
    actors.place("a", "a", "b")
    actors.members.notice(0, "goes", 100.0)
    actors.members.notice(1, "goes", 101.0 + STALE_SECONDS)
    assert 1 in actors.members.ready_actors
    assert "said 10 minutes ago too" in actors.said[-1]
    actors.members.notice(2, "goes", 101.0 + STALE_SECONDS)
    assert 2 not in actors.members.ready_actors, "of another node it is the first"
    actors.members.notice(1, SIGTERM, 101.0 + STALE_SECONDS)
    assert 1 not in actors.members.ready_actors, "a signal is for the process"
