"""The actors of a run from request to end: carries out the scaler's decisions, and tells the dispatcher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline import stages
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.resources import ActorResources
from pipeline.cluster.scaling import Load, Member, PoolLimits, Scaler

__all__ = ["Actors", "Members"]

_LOG = logging.getLogger(__name__)
_EVERY_SECONDS = 1.0
_FIT_SECONDS = 10.0
_TELL_SECONDS = 30.0
"""What is waited for is said after so long, and again each time that it has doubled."""


class Actors(Protocol):
    """What is needed of :class:`pipeline.cluster.pool.Pool`."""

    resources: dict[str, ActorResources]
    names: dict[int, str]

    def start(self, pool: str) -> int:
        """Ask for an actor."""
        ...

    def end(self, actor: int) -> None:
        """End an actor."""
        ...

    def is_placed(self, actor: int) -> bool:
        """Whether there is a node for it."""
        ...


@dataclass(kw_only=True)
class _State:
    asked: float
    ready: bool = False
    leaving: bool = False
    busy: float = 0.0
    """When it became ready, was last given a unit or last did one."""


class Members:
    """Who is asked for, who is ready, who is idle.

    Args:
        pool: the actors; those that it has already were asked for just now.
        dispatcher: told who joins and who leaves.
        held: units that an actor of each pool holds at most.
        now: seconds of the dispatcher's clock.
        watch: called with the number of each actor that is asked for.
        refit: how many actors of each pool the cluster has room for, asked from time to time; None if that is fixed, or
            more are asked for than there is room for.
    """

    def __init__(
        self,
        pool: Actors,
        dispatcher: Dispatcher,
        held: Mapping[str, int],
        now: float,
        watch: Callable[[int], None],
        refit: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._held = held
        self._watch = watch
        self._scaler = Scaler()
        self._states: dict[int, _State] = {}
        self._refit = refit
        self._next = now
        self._next_fit = now + _FIT_SECONDS
        self._said = now
        self._patience = _TELL_SECONDS
        self.starts: list[Mapping[str, float]] = []
        """Seconds of each stage of the start of every actor that became ready."""
        for actor in list(pool.names):
            self._asked(actor, now)

    @property
    def ready(self) -> int:
        """Actors that take units."""
        return len(self.ready_actors)

    @property
    def ready_actors(self) -> tuple[int, ...]:
        """Their numbers. This and the next two may be asked from any thread."""
        return tuple(actor for actor, state in list(self._states.items()) if state.ready and not state.leaving)

    @property
    def starting(self) -> int:
        """Actors that were asked for and are not ready yet."""
        return sum(not state.ready and not state.leaving for state in list(self._states.values()))

    @property
    def leaving(self) -> int:
        """Actors that take no new unit."""
        return sum(state.leaving for state in list(self._states.values()))

    def __contains__(self, actor: int) -> bool:
        return actor in self._states

    def join(self, actor: int, taken: Mapping[str, float], now: float) -> None:
        """An actor has loaded its model."""
        state = self._states[actor]
        state.ready, state.busy = True, now
        self._dispatcher.join(actor, now, self._held[self._pool.names[actor]])
        self.starts.append(dict(taken))
        self._scaler.record_start(sum(seconds for name, seconds in taken.items() if name != "scheduled"))
        self._said, self._patience = now, _TELL_SECONDS

    def touch(self, actor: int, now: float) -> None:
        """An actor was given a unit, or has done one."""
        if actor in self._states:
            self._states[actor].busy = now

    def held(self, actor: int) -> int:
        """Units that an actor holds."""
        state = self._states.get(actor)
        return self._dispatcher.held_by(actor) if state is not None and state.ready else 0

    def depart(self, actor: int) -> None:
        """An actor has to go: it takes no new unit, and another one may be asked for in its place."""
        if actor in self._states:
            self._states[actor].leaving = True
            self._dispatcher.retire(actor)

    def end(self, actor: int) -> list[str]:
        """An actor leaves, whatever it holds, and is ended. Returns the units that go back to the queue."""
        self._states.pop(actor, None)
        back = self._dispatcher.leave(actor)
        self._pool.end(actor)
        return back

    def adjust(self, waiting: int, now: float) -> None:
        """Ask for actors and end some, as the work demands; looks at most once a second.

        Args:
            waiting: units that no actor holds, those included that are not read yet.
            now: seconds of the dispatcher's clock.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        for actor, state in self._states.items():
            if state.ready and self._dispatcher.held_by(actor):
                state.busy = now
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
        change = self._scaler.decide(load, self._limits(), self._members(), now)
        for actor in change.end:
            self.end(actor)
        for name, count in change.start.items():
            for _ in range(count):
                self._asked(self._pool.start(name), now)
        if change.end or change.start:
            _LOG.info("%d actors asked for, %d ended; %d now", sum(change.start.values()), len(change.end),
                      len(self._states))  # fmt: skip
        self._tell(now)

    def _asked(self, actor: int, now: float) -> None:
        self._states[actor] = _State(asked=now)
        self._watch(actor)

    def _limits(self) -> list[PoolLimits]:
        return [
            PoolLimits(name=name, least=own.least, most=own.actors, held=self._held[name],
                       idle_seconds=own.idle_seconds)
            for name, own in self._pool.resources.items()
        ]  # fmt: skip

    def _members(self) -> list[Member]:
        return [
            Member(actor=actor, pool=self._pool.names[actor], ready=state.ready,
                   held=self._dispatcher.held_by(actor) if state.ready else 0,
                   since=state.busy if state.ready else state.asked)
            for actor, state in self._states.items() if not state.leaving
        ]  # fmt: skip

    def _tell(self, now: float) -> None:
        """Say in one line what is waited for, where it takes long."""
        starting = [actor for actor, state in self._states.items() if not state.ready]
        if not starting:
            self._said = now
        if not starting or now - self._said < self._patience:
            return
        self._said, self._patience = now, 2 * self._patience
        pending = [actor for actor in starting if not self._pool.is_placed(actor)]
        lines = []
        for name, own in self._pool.resources.items():
            label = f" of pool {name!r}" if name else ""
            if count := sum(self._pool.names[actor] == name for actor in pending):
                lines.append(f"{count} actor{'s' * (count > 1)}{label} for a node with room for {own.describe()}")
        if loading := len(starting) - len(pending):
            lines.append(f"{loading} to load their models")
        stages.announce(f"waiting for {' and for '.join(lines)}; {self.ready} at work")
