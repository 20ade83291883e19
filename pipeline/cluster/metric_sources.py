"""Sources of metrics, sampled in an actor and in the driver. Knows no Ray; read from the reporter's own thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.types import CommitRecord

if TYPE_CHECKING:
    from pipeline.cluster.dispatcher import Dispatcher
    from pipeline.cluster.members import Members


class ActorSource:
    """Values of ``actor.*`` in the table of metrics, of one actor's process.

    Attributes:
        starts: 1.
        deaths: 1 if this process replaces one that died, else 0.

    Args:
        gpus: that the actor reserves.
        cpus: that the actor reserves.
        restarted: whether this process replaces one that died.
        age: seconds since this process began.
        queue_depth: requests that do not run yet.
    """

    def __init__(self, *, gpus: float, cpus: float, restarted: bool, age: float,
                 queue_depth: Callable[[], int]) -> None:  # fmt: skip
        self.starts, self.deaths = 1, int(restarted)
        self._gpus, self._cpus = gpus, cpus
        self._began = time.monotonic() - age
        self._queue_depth = queue_depth

    @property
    def queue_depth(self) -> int:
        """Requests of the actor's units that do not run yet."""
        return self._queue_depth()

    @property
    def accelerator_seconds(self) -> float:
        """Seconds of this process times its GPUs."""
        return self._gpus * (time.monotonic() - self._began)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of this process times its CPUs."""
        return self._cpus * (time.monotonic() - self._began)


def engine_load(snapshot: Any, process: str) -> dict[str, Any] | None:
    """Counts of an engine for the driver's progress.

    Args:
        snapshot: of the engine; None for one that makes none.
        process: the name of this process.
    """
    if snapshot is None:
        return None
    own = {name: getattr(snapshot, name) for name in ("kv_pages_used", "kv_pages")}
    return {"process": process, "counters": asdict(snapshot.counters), **own}


class DriverSource:
    """Values of ``driver.*`` in the table of metrics, of one run.

    Attributes:
        tokens, rows: of the committed units.
        failures: failed rows by error class.
        dispatcher: knows which units run, once it is there.
        members: knows which actors are ready, once it is there.
    """

    def __init__(self) -> None:
        self._units = self._committed = 0
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()
        self.tokens = self.rows = 0
        self.dispatcher: Dispatcher | None = None
        self.members: Members | None = None

    def begin(self, units: int) -> None:
        """The run has to do so many units."""
        self._units = units

    def committed(self, records: Iterable[CommitRecord]) -> None:
        """Count units that are in the ledger now."""
        with self._lock:
            for record in records:
                self._committed += 1
                self.tokens += record.completion_tokens
                self.rows += record.num_rows
                self._failures.update(record.failures)

    def watch(self, lists: Iterator[list[CommitRecord]]) -> Iterator[list[CommitRecord]]:
        """``lists``; each counts as committed when the consumer asks for the next one."""
        for records in lists:
            yield records
            self.committed(records)

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed rows by error class."""
        with self._lock:
            return dict(self._failures)

    @property
    def units(self) -> Mapping[str, int]:
        """Units by state. One that is staged and not committed yet counts as planned, for a moment."""
        waiting, running = (self.dispatcher.waiting, self.dispatcher.running) if self.dispatcher else (0, 0)
        planned = max(0, self._units - self._committed - waiting - running)
        return {"planned": planned, "waiting": waiting, "running": running, "committed": self._committed}
