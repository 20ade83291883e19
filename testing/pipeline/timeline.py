"""Records a cluster and a job on it over time: nodes, actors, units done, and kills."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from testing.pipeline.autoscaled import AutoscaledCluster
from testing.pipeline.ray_nodes import Node

_EVERY_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look.

    Attributes:
        seconds: since the begin.
        nodes: that run, without the head.
        actors: running processes of generate actors, also while they load the model.
        units: done, of all runs of the job.
        head: 1 if the head runs.
    """

    seconds: float
    nodes: int
    actors: int
    units: int
    head: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that was done, or that happened."""

    seconds: float
    what: str


class Timeline:
    """Looks twice a second, in a thread, during :meth:`recording`.

    Args:
        cluster: whose nodes are counted.
        units: how many are done.
    """

    def __init__(self, cluster: AutoscaledCluster, units: Callable[[], int]) -> None:
        self._cluster = cluster
        self._units = units
        self._begin = time.monotonic()
        self.samples: list[Sample] = []
        self.events: list[Event] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record for the duration of the block."""
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(_EVERY_SECONDS):
                self._look()

        thread = threading.Thread(target=look, name="timeline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @property
    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._begin

    @property
    def last(self) -> Sample:
        """The latest look."""
        return self.samples[-1] if self.samples else Sample(seconds=0.0, nodes=0, actors=0, units=0, head=1)

    def mark(self, what: str) -> None:
        """Record an event, and print it."""
        self.events.append(Event(seconds=round(self.now, 1), what=what))
        last = self.last
        print(f"{self.now:7.1f} s  {what}  ({last.nodes} nodes, {last.actors} actors, {last.units} units)", flush=True)

    def wait_for(self, reached: Callable[[Sample], bool], what: str, seconds: float = 240.0) -> None:
        """Wait until a look satisfies ``reached``.

        Raises:
            RuntimeError: none does in time; ``what`` names the event.
        """
        deadline = time.monotonic() + seconds
        while not reached(self.last):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {seconds:.0f} s: {what}; the last look: {self.last}")
            time.sleep(_EVERY_SECONDS / 2)

    def save(self, path: Path) -> None:
        """Write the samples as ``path``.csv and the events as ``path``.json."""
        with path.with_suffix(".csv").open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(field.name for field in fields(Sample))
            rows.writerows(asdict(sample).values() for sample in self.samples)
        path.with_suffix(".json").write_text(json.dumps([asdict(event) for event in self.events], indent=1) + "\n")

    def _look(self) -> None:
        nodes = [node for node in self._cluster.machines() if _runs(node)]
        with suppress(psutil.Error):  # a process ended meanwhile: the next look will do
            actors = sum(worker.status() != psutil.STATUS_STOPPED for node in nodes for worker in node.actors())
            head = int(_runs(self._cluster.head))
            self.samples.append(
                Sample(seconds=round(self.now, 1), nodes=len(nodes), actors=actors, units=self._units(), head=head)
            )


def _runs(node: Node) -> bool:
    """Whether its raylet is there and is not stopped."""
    with suppress(psutil.Error):
        raylet = node.raylet
        return raylet is not None and raylet.status() != psutil.STATUS_STOPPED
    return False
