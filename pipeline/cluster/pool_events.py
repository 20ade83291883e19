"""What happens to a pool of actors, as a queue of events: each comes from a callback of Ray or from a thread."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.cluster.dispatcher import Assignment
from pipeline.cluster.nodes import NodeTable
from pipeline.cluster.prefetch import PreparedUnit
from pipeline.cluster.room import Room
from pipeline.cluster.watching import Watched

__all__ = ["Event", "Events", "Failed", "Ready", "Result", "Silence", "next_event", "read_units", "when_done"]

_POLL_SECONDS = 0.2
"""Longest wait for an event. A slow actor and a request to stop cause none, so both are looked at this often."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An actor has loaded its model. ``taken``: the seconds of each stage of its start."""

    actor: int
    taken: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A call came back with the commit record of its unit; None if it was declined or dropped."""

    given: Assignment
    record: str | None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A call of ``actor`` ended with an error; None: the prefetch thread did."""

    error: BaseException
    actor: int | None = None


class Silence:
    """No event came in time."""


Event = Ready | Result | Failed | Watched | NodeTable | PreparedUnit | None
"""None: there are no more units."""
Events = queue.SimpleQueue[Event]


def next_event(events: Events) -> Event | Silence:
    """The next event, or that none came in time."""
    try:
        return events.get(timeout=_POLL_SECONDS)
    except queue.Empty:
        return Silence()


def read_units(units: Generator[PreparedUnit | None, None, None], events: Events, room: Room) -> None:
    """Draw units as there is room for them; for a thread of its own. None: nothing is there yet."""
    try:
        with contextlib.closing(units):
            for unit in units:
                if unit is None:
                    if room.closed:
                        return
                    continue
                events.put(unit)
                if not room.take():
                    return
        events.put(None)
    except BaseException as error:
        events.put(Failed(error=error))


def when_done(reference: Any, events: Events, event: Callable[[Any], Event], actor: int) -> None:
    """Queue ``event(value)`` once ``reference`` resolves, or a :class:`Failed` if it resolves to an error.

    Args:
        reference: to the result of a call of ``actor``.
        events: the queue.
        event: makes the event.
        actor: whom the call was for.
    """

    def put_event(future: Any) -> None:
        error = future.exception()
        events.put(event(future.result()) if error is None else Failed(error=error, actor=actor))

    reference.future().add_done_callback(put_event)
