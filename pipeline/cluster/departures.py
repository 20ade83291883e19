"""Which actors have to go, and when at the latest, as their machines go. Plain logic; knows no Ray.

An actor that has notice takes no new unit. It finishes what it can within a budget, and within what its node has left;
then the rest is handed back. An actor whose node is gone has no time left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipeline.cluster.nodes import NodeTable

__all__ = ["STALE_SECONDS", "Departure", "Departures"]

_MARGIN_SECONDS = 2.0
"""Kept of what a draining node has left, for handing back."""
STALE_SECONDS = 600.0
"""No platform gives notice so long ahead: of a node that is still there, what it says is left over from before."""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """An actor has to go. ``until``: when at the latest; ``lost``: it is gone already, with its node."""

    actor: int
    until: float
    why: str
    lost: bool = False


class Departures:
    """Collects where actors are and what is said of their nodes. ``now`` is in seconds of any monotonic clock.

    Every method that may begin departures returns them, each actor's once, or again where its time became shorter.

    Args:
        budget: seconds in which an actor that has notice may finish units.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._nodes: dict[int, str] = {}
        self._until: dict[int, float] = {}
        self._noticed: dict[str, float] = {}
        """When each node first had notice."""
        self._table = NodeTable(alive=frozenset())

    def place(self, actor: int, node: str, now: float) -> list[Departure]:
        """The actor's process runs on this node, from now on."""
        self._nodes[actor] = node
        return self._check(actor, now)

    def notice(self, actor: int, why: str, now: float, *, of_node: bool = False) -> list[Departure]:
        """The actor itself has had notice; ``of_node``: of its machine. That counts for so long as it can be true."""
        if of_node and self.is_stale(actor, now):
            return []
        return self._begin(Departure(actor=actor, until=now + self._budget, why=why))

    def is_stale(self, actor: int, now: float) -> bool:
        """Whether the actor's node has had notice for longer than any that goes."""
        node = self._nodes.get(actor)
        return node is not None and now - self._noticed.setdefault(node, now) > STALE_SECONDS

    def see(self, table: NodeTable, now: float) -> list[Departure]:
        """What the head says of nodes."""
        self._table = table
        return [departure for actor in self._nodes for departure in self._check(actor, now)]

    def forget(self, actor: int) -> None:
        """The actor is gone."""
        self._nodes.pop(actor, None)
        self._until.pop(actor, None)

    def is_leaving(self, actor: int) -> bool:
        """Whether the actor has to go."""
        return actor in self._until

    def due(self, now: float) -> list[int]:
        """Actors whose time is over."""
        return [actor for actor, until in self._until.items() if until <= now]

    def leaving(self) -> list[int]:
        """Actors that have to go."""
        return list(self._until)

    def _check(self, actor: int, now: float) -> list[Departure]:
        node = self._nodes[actor]
        if node in self._table.dead:
            why = "the node is gone" if node in self._table.expected else "the node was lost"
            return self._begin(Departure(actor=actor, until=now, why=why, lost=True))
        if node not in self._table.draining:
            return []
        left = self._table.seconds_left(node, time.time()) - _MARGIN_SECONDS
        return self._begin(
            Departure(actor=actor, until=now + max(0.0, min(self._budget, left)), why="the node is being drained")
        )

    def _begin(self, departure: Departure) -> list[Departure]:
        known = self._until.get(departure.actor)
        if known is not None and known <= departure.until:
            return []
        self._until[departure.actor] = departure.until
        return [departure]
