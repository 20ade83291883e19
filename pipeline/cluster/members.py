"""The actors of a run from request to end: carries out the scaler's decisions, and tells the dispatcher. No Ray here.

An actor whose machine goes takes no new unit. It finishes units within a budget, and within the time that its node has
left; then the rest is handed back. An actor whose node is gone has no time left.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from pipeline import stages
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.node_watch import NodeTable
from pipeline.cluster.resources import ActorResources
from pipeline.cluster.scaling import Load, Member, PoolLimits, Scaler
from pipeline.worker.notice import SIGTERM, SPOT_NOTICE

_LOG = logging.getLogger(__name__)
_EVERY_SECONDS = 1.0
_FIT_SECONDS = 10.0
_TELL_SECONDS = 60.0
"""Report the reason of waiting each time that it has lasted so many seconds more."""
_MARGIN_SECONDS = 2.0
"""Kept of the time that a draining node has left, for handing units back."""
_DRAINED = "the node is being drained"
STALE_SECONDS = 600.0
"""No platform gives notice so long ahead: a notice of a node that is still there is left over from before."""


class Actors(Protocol):
    """The part of :class:`pipeline.cluster.actor_pool.ActorPool` that members use."""

    resources: dict[str, ActorResources]
    names: dict[int, str]

    def start(self, pool: str) -> int:
        """Ask for an actor."""
        ...

    def end(self, actor: int) -> None:
        """End an actor."""
        ...

    def begun(self) -> set[int]:
        """Actors whose process has begun."""
        ...


class Members:
    """Who is asked for, who is ready, who is idle, who has to go. ``now`` is in seconds of the dispatcher's clock.

    Args:
        pool: the actors; those that it has already were asked for just now.
        held: units that an actor of each pool holds at most.
        watch: called with the number of each actor that is asked for.
        refit: how many actors of each pool the cluster has room for, asked from time to time; None if that is fixed, or
            more are asked for than there is room for.
        drain_seconds: an actor that has to go may finish units for so long.
    """

    def __init__(
        self,
        pool: Actors,
        dispatcher: Dispatcher,
        held: Mapping[str, int],
        now: float,
        watch: Callable[[int], None] = lambda actor: None,
        refit: Callable[[], Mapping[str, int]] | None = None,
        drain_seconds: float = 0.0,
    ) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._held = held
        self._watch = watch
        self._scaler = Scaler()
        self._states: dict[int, Member] = {}
        self._refit = refit
        self._drain_seconds = drain_seconds
        self._nodes = NodeTable(alive=frozenset())
        self._noticed: dict[str, float] = {}
        """When each node first had notice."""
        self._next = now
        self._next_fit = now + _FIT_SECONDS
        self._said = now
        self.starts: list[Mapping[str, float]] = []
        """Seconds of each stage of the start of every actor that became ready."""
        for actor in list(pool.names):
            self._asked(actor, now)

    @property
    def ready_actors(self) -> tuple[int, ...]:
        """Actors that take units. This and the next two may be asked from any thread."""
        return tuple(actor for actor, state in list(self._states.items()) if state.ready and state.until is None)

    @property
    def starting(self) -> int:
        """Actors that were asked for and are not ready yet."""
        return sum(not state.ready and state.until is None for state in list(self._states.values()))

    @property
    def leaving(self) -> int:
        """Actors that take no new unit."""
        return sum(state.until is not None for state in list(self._states.values()))

    def __contains__(self, actor: int) -> bool:
        return actor in self._states

    # --- one actor --------------------------------------------------------------------------------------

    def join(self, actor: int, taken: Mapping[str, float], now: float) -> None:
        """Take an actor that has loaded its model. ``taken``: the seconds of each stage of its start."""
        state = self._states[actor]
        state.ready, state.since = True, now
        self._dispatcher.join(actor, now, self._held[self._pool.names[actor]])
        self.starts.append(dict(taken))
        self._scaler.record_start(sum(seconds for name, seconds in taken.items() if name != "scheduled"))
        self._said = now

    def touch(self, actor: int, now: float) -> None:
        """Note that an actor was given a unit, or has done one."""
        if actor in self._states:
            self._states[actor].since = now

    def is_ready(self, actor: int) -> bool:
        """Whether an actor has joined."""
        return self._states[actor].ready

    def held(self, actor: int) -> int:
        """Units that an actor holds."""
        return self._dispatcher.held_by(actor) if self.is_ready(actor) else 0

    def end(self, actor: int) -> list[str]:
        """End an actor, whatever it holds. Returns the units that go back to the queue."""
        self._states.pop(actor, None)
        back = self._dispatcher.leave(actor)
        self._pool.end(actor)
        return back

    def _asked(self, actor: int, now: float) -> None:
        self._states[actor] = Member(actor=actor, pool=self._pool.names[actor], since=now)
        self._watch(actor)

    # --- actors that have to go -------------------------------------------------------------------------

    def place(self, actor: int, node: str, now: float) -> None:
        """Note that the actor's process runs on this node, from now on."""
        self._states[actor].node = node
        self._check([actor], now)

    def see(self, nodes: NodeTable, now: float) -> None:
        """Store the head's report of the nodes."""
        self._nodes = nodes
        self._check(list(self._states), now)

    def notice(self, actor: int, why: str, now: float) -> None:
        """Take the notice that an actor has had: of its process, or of its machine."""
        node = self._states[actor].node
        if why != SIGTERM and node is not None and now - self._noticed.setdefault(node, now) > STALE_SECONDS:
            stages.announce(
                f"{why}: said {STALE_SECONDS / 60:.0f} minutes ago too, and the machine is still there. Its actors "
                f"stay; remove what {SPOT_NOTICE} names there"
            )
            return
        self._depart({actor: now + self._drain_seconds}, why, now)
        self.settle(now)

    def settle(self, now: float) -> None:
        """End the actors that have to go and hold no unit any more, and those whose time is over."""
        gone = [
            actor
            for actor, state in self._states.items()
            if state.until is not None and (state.until <= now or not self.held(actor))
        ]
        back = sum(len(self.end(actor)) for actor in gone)
        if gone:
            stages.announce(f"{_count(len(gone), 'actor')} left; {_count(back, 'unit')} handed back, for others to do")

    def _check(self, actors: Iterable[int], now: float) -> None:
        """Let those of ``actors`` go whose nodes are gone or are being drained."""
        going: dict[str, dict[int, float]] = {}
        for actor in actors:
            node, until = self._states[actor].node, now
            if node is None:
                continue
            if node in self._nodes.dead:
                why = "the node is gone" if node in self._nodes.expected else "the node was lost"
            elif node in self._nodes.draining:
                why = _DRAINED
                left = self._nodes.seconds_left(node, time.time()) - _MARGIN_SECONDS
                until += max(0.0, min(self._drain_seconds, left))
            else:
                continue
            going.setdefault(why, {})[actor] = until
        for why, untils in going.items():
            self._depart(untils, why, now, lost=why != _DRAINED)
        self.settle(now)

    def _depart(self, untils: Mapping[int, float], why: str, now: float, *, lost: bool = False) -> None:
        """Give these actors no new unit, and leave them time until then; no change for those that have less."""
        going = {
            actor: until for actor, until in untils.items() if (own := self._states[actor].until) is None or until < own
        }
        for actor, until in going.items():
            self._states[actor].until = until
            self._dispatcher.retire(actor)
        if not going:
            return
        who, units = _count(len(going), "actor"), _count(sum(map(self.held, going)), "unit")
        seconds = min(going.values()) - now
        stages.announce(f"{who} lost ({why})" if lost else f"{who} to leave ({why}): {seconds:.0f} s for {units}")

    # --- how many there are -----------------------------------------------------------------------------

    def adjust(self, waiting: int, now: float) -> None:
        """Ask for actors and end some, as the work demands; looks at most once a second.

        ``waiting``: units that no actor holds, those included that are not read yet.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        for actor, state in self._states.items():
            state.held = self.held(actor)
            if state.held:
                state.since = now
        if self._refit is not None and now >= self._next_fit:
            self._next_fit = now + _FIT_SECONDS
            for name, most in self._refit().items():
                self._pool.resources[name] = replace(self._pool.resources[name], actors=most)
        dispatcher = self._dispatcher
        load = Load(
            waiting=waiting,
            queued=dispatcher.waiting,
            running=dispatcher.running,
            unit_seconds=dispatcher.unit_seconds,
        )
        limits = [
            PoolLimits(name=name, least=own.least, most=own.actors, held=self._held[name],
                       idle_seconds=own.idle_seconds)
            for name, own in self._pool.resources.items()
        ]  # fmt: skip
        staying = [state for state in self._states.values() if state.until is None]
        change = self._scaler.decide(load, limits, staying, now)
        for actor in change.end:
            self.end(actor)
        for name, count in change.start.items():
            for _ in range(count):
                self._asked(self._pool.start(name), now)
        if change.end or change.start:
            _LOG.info("%d actors asked for, %d ended; %d now", sum(change.start.values()), len(change.end),
                      len(self._states))  # fmt: skip
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Report in one line the reason of a long wait."""
        starting = {actor for actor, state in self._states.items() if not state.ready}
        if not starting:
            self._said = now
        if not starting or now - self._said < _TELL_SECONDS:
            return
        self._said = now
        pending = Counter(self._pool.names[actor] for actor in starting - self._pool.begun())
        lines = []
        for name, own in self._pool.resources.items():
            label = f" of pool {name!r}" if name else ""
            if count := pending[name]:
                lines.append(f"{_count(count, 'actor')}{label} for a node with room for {own.describe()}")
        if loading := len(starting) - pending.total():
            lines.append(f"{loading} to load their models")
        stages.announce(f"waiting for {' and for '.join(lines)}; {len(self.ready_actors)} at work")


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
