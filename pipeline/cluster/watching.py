"""Keeps a question open at each actor: where it is, and whether it has to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.cluster.leaving import Leaving
from pipeline.cluster.members import Members

__all__ = ["Watched", "Watching"]

_PAUSE_SECONDS = 1.0


class _Pool(Protocol):
    def watch(self, actor: int, process: str) -> Any:
        """See :meth:`pipeline.cluster.pool.Pool.watch`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What an actor says, see :meth:`GenerateActor.watch`; None: its process died, or is not there yet."""

    actor: int
    answer: tuple[str, str, str | None] | None


class Watching:
    """The open questions. Each answer is given to ``put``, in any thread, and comes back by :meth:`take`."""

    def __init__(self, pool: _Pool, put: Callable[[Watched], None]) -> None:
        self._pool = pool
        self._put = put
        self._cut_off: dict[int, float] = {}

    def begin(self, actor: int) -> None:
        """Ask an actor for the first time; it may not be there yet."""
        self._ask(actor, "")

    def take(self, watched: Watched, members: Members, leaving: Leaving, now: float) -> None:
        """Take up an answer, and ask again."""
        actor = watched.actor
        if actor not in members:
            return
        if watched.answer is None:
            self._cut_off[actor] = now + _PAUSE_SECONDS
            return
        process, node, why = watched.answer
        if why is not None:
            leaving.noticed(actor, why, now)
            return
        leaving.moved(actor, node, now)
        if actor in members:
            self._ask(actor, process)

    def again(self, members: Members, now: float) -> None:
        """Ask those again whose process died a while ago: Ray starts another."""
        for actor in [actor for actor, then in self._cut_off.items() if then <= now]:
            del self._cut_off[actor]
            if actor in members:
                self._ask(actor, "")

    def _ask(self, actor: int, process: str) -> None:
        def put(future: Any) -> None:
            self._put(Watched(actor=actor, answer=None if future.exception() is not None else future.result()))

        self._pool.watch(actor, process).future().add_done_callback(put)
