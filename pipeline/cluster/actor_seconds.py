"""How long a run's actors live, times what each reserves: what the run's resources are billed by. Knows no Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipeline.progress.cost import ResourceSeconds

__all__ = ["ActorSeconds"]


class ActorSeconds:
    """Adds up the lives of actors. Thread-safe.

    A life begins with the actor's process and ends when the pool gives the actor back. In between Ray may replace the
    process, on a node that is paid for all the while: that time counts too. Time in which an actor waits for a node
    does not.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: dict[object, tuple[float, ResourceSeconds]] = {}
        self._ended = ResourceSeconds()

    def started(self, actor: object, *, gpus: float, cpus: float, ago: float = 0.0) -> None:
        """An actor is there. Known actors are ignored.

        Args:
            actor: any name of it.
            gpus: that it reserves.
            cpus: that it reserves.
            ago: seconds since its process began.
        """
        with self._lock:
            each = ResourceSeconds(accelerators=gpus, cpus=cpus)
            self._alive.setdefault(actor, (self._clock() - ago, each))

    def ended(self, actor: object) -> None:
        """An actor was given back, or is lost for good. Unknown actors are ignored."""
        with self._lock:
            life = self._alive.pop(actor, None)
            if life is not None:
                self._ended += _lived(life, self._clock())

    def ended_all(self) -> None:
        """Every actor was given back."""
        for actor in list(self._alive):
            self.ended(actor)

    def used(self) -> ResourceSeconds:
        """The sum up to now."""
        with self._lock:
            return sum((_lived(life, self._clock()) for life in self._alive.values()), start=self._ended)


def _lived(life: tuple[float, ResourceSeconds], now: float) -> ResourceSeconds:
    begin, each = life
    seconds = now - begin
    return ResourceSeconds(accelerators=each.accelerators * seconds, cpus=each.cpus * seconds)
