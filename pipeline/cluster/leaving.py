"""Lets actors go whose machines go: they take no new unit, finish what they can, and hand back the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline import stages
from pipeline.cluster.departures import STALE_SECONDS, Departure, Departures
from pipeline.cluster.members import Members
from pipeline.cluster.nodes import NodeTable
from pipeline.worker.notice import SIGTERM, SPOT_NOTICE

__all__ = ["Leaving"]


class Leaving:
    """What is known of actors' machines, and what follows. ``now`` is in seconds of the dispatcher's clock.

    Args:
        members: the actors.
        budget: seconds in which an actor that has to go may finish units.
    """

    def __init__(self, members: Members, budget: float) -> None:
        self._members = members
        self._departures = Departures(budget)

    def moved(self, actor: int, node: str, now: float) -> None:
        """A process of the actor has begun on this node."""
        self._begin(self._departures.place(actor, node, now), now)

    def noticed(self, actor: int, why: str, now: float) -> None:
        """The actor has had notice."""
        of_node = why != SIGTERM
        if of_node and self._departures.is_stale(actor, now):
            stages.announce(
                f"{why}: said {STALE_SECONDS / 60:.0f} minutes ago too, and the machine is still there. Its actors "
                f"stay; remove what {SPOT_NOTICE} names there"
            )
        self._begin(self._departures.notice(actor, why, now, of_node=of_node), now)

    def seen(self, table: NodeTable, now: float) -> None:
        """What the head says of the nodes."""
        self._begin(self._departures.see(table, now), now)

    def settle(self, now: float) -> None:
        """End the actors that have to go and hold no unit any more, and those whose time is over."""
        due = set(self._departures.due(now))
        ended = back = 0
        for actor in self._departures.leaving():
            if actor not in self._members:
                self._departures.forget(actor)
            elif actor in due or not self._members.held(actor):
                ended += 1
                back += self._end(actor)
        if ended:
            stages.announce(f"{_count(ended, 'actor')} left; {_count(back, 'unit')} handed back, for others to do")

    def _begin(self, departures: Sequence[Departure], now: float) -> None:
        for departure in departures:
            self._members.depart(departure.actor)
        for (why, lost), count in Counter((departure.why, departure.lost) for departure in departures).items():
            if lost:
                stages.announce(f"{_count(count, 'actor')} lost ({why})")
                continue
            until = min(departure.until for departure in departures if departure.why == why)
            held = sum(self._members.held(departure.actor) for departure in departures if departure.why == why)
            stages.announce(
                f"{_count(count, 'actor')} to leave ({why}): {until - now:.0f} s for {_count(held, 'unit')}"
            )
        self.settle(now)

    def _end(self, actor: int) -> int:
        """End an actor; how many units it hands back."""
        self._departures.forget(actor)
        return len(self._members.end(actor))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
