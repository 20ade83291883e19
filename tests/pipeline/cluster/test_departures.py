"""Who has to go and when at the latest: by notice, by a draining node, by a node that is gone."""

from __future__ import annotations

import time

from pipeline.cluster.departures import STALE_SECONDS, Departure, Departures
from pipeline.cluster.nodes import NodeTable

BUDGET = 20.0


def table(*alive: str, draining: dict[str, float] | None = None, dead: frozenset[str] = frozenset(),
          expected: frozenset[str] = frozenset()) -> NodeTable:  # fmt: skip
    """``draining``: node -> seconds that it has left."""
    until = {node: time.time() + left for node, left in (draining or {}).items()}
    return NodeTable(alive=frozenset(alive), draining=until, dead=dead, expected=expected)


def test_an_actor_with_notice_has_the_budget() -> None:
    departures = Departures(BUDGET)
    departures.place(1, "a", 0.0)
    assert departures.notice(1, "SIGTERM", 100.0) == [Departure(actor=1, until=120.0, why="SIGTERM")]
    assert departures.notice(1, "SIGTERM", 110.0) == [], "a second notice gives no more time"
    assert departures.is_leaving(1)
    assert departures.due(119.9) == []
    assert departures.due(120.0) == [1]
    departures.forget(1)
    assert departures.due(1e9) == []


def test_actors_of_a_draining_node_have_what_it_has_left_and_no_more_than_the_budget() -> None:
    departures = Departures(BUDGET)
    for actor, node in enumerate(["long", "short", "now", "open", "stays"]):
        assert departures.place(actor, node, 0.0) == []
    left = {"long": 600.0, "short": 10.0, "now": 1.0, "open": float("inf")}
    begun = {d.actor: d for d in departures.see(table(*left, "stays", draining=left), 100.0)}
    assert {actor: round(d.until - 100.0) for actor, d in begun.items()} == {0: 20, 1: 8, 2: 0, 3: 20}
    assert not any(d.lost for d in begun.values())
    assert departures.see(table(*left, "stays", draining=left), 101.0) == [], "said once"
    left["long"] = 5.0
    assert [d.actor for d in departures.see(table(*left, draining=left), 102.0)] == [0], "its time became shorter"


def test_an_actor_whose_node_is_gone_is_lost_at_once() -> None:
    departures = Departures(BUDGET)
    departures.place(1, "a", 0.0)
    departures.place(2, "b", 0.0)
    departures.place(3, "c", 0.0)
    departures.see(table("a", "b", "c", draining={"b": 60.0}), 1.0)
    gone = departures.see(table("c", dead=frozenset({"a", "b"}), expected=frozenset({"b"})), 5.0)
    assert gone == [
        Departure(actor=1, until=5.0, why="the node was lost", lost=True),
        Departure(actor=2, until=5.0, why="the node is gone", lost=True),
    ]
    assert sorted(departures.due(5.0)) == [1, 2]


def test_a_node_that_the_head_does_not_list_yet_is_not_lost() -> None:
    departures = Departures(BUDGET)
    departures.see(table("a"), 0.0)
    assert departures.place(1, "new", 1.0) == []
    assert departures.see(table("a"), 2.0) == []
    assert departures.see(table("a", "new"), 4.0) == []


def test_an_actor_that_comes_up_on_a_node_that_goes_has_to_go_too() -> None:
    departures = Departures(BUDGET)
    departures.see(table("a", draining={"a": 60.0}, dead=frozenset({"b"})), 0.0)
    assert [d.until for d in departures.place(1, "a", 10.0)] == [30.0]
    assert [d.lost for d in departures.place(2, "b", 10.0)] == [True]
    assert departures.place(2, "a", 11.0) == [], "it is lost, wherever its next process is"


def test_a_notice_that_is_older_than_any_platform_gives_does_not_count_any_more() -> None:
    departures = Departures(BUDGET)
    for actor, now in enumerate((100.0, 130.0, 100.0 + STALE_SECONDS)):
        departures.place(actor, "a", now)
        assert departures.notice(actor, "goes", now, of_node=True), "the next actor there has to go, too"
    departures.place(7, "a", 0.0)
    departures.place(8, "b", 0.0)
    late = 101.0 + STALE_SECONDS
    assert departures.notice(7, "goes", late, of_node=True) == []
    assert departures.notice(8, "goes", late, of_node=True), "of another node it is the first"
    assert departures.notice(7, "SIGTERM", late), "a signal is for the process"
