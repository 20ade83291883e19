"""Watches the cluster's nodes from the driver: asks the head at a bounded rate, and notices when it is gone."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pipeline.cluster.private_ray import read_node_tables
from pipeline.errors import ClusterLostError
from pipeline.worker.crash_bisection import Machine

_EXPECTED = frozenset({1, 3, 4})
"""Of Ray's reasons for a node's death: it ended by itself, was drained as it is being taken away, or for being idle."""


@dataclass(frozen=True, kw_only=True)
class NodeTable:
    """Nodes by id.

    Attributes:
        alive: nodes that are there, those that are being drained among them.
        dead: nodes that are gone.
        draining: node -> until when it will be there, seconds since 1970; ``inf`` if unknown.
        expected: those that are gone whose end was announced.
    """

    alive: frozenset[str]
    dead: frozenset[str] = frozenset()
    draining: Mapping[str, float] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()

    @staticmethod
    def of(nodes: Iterable[Mapping[str, Any]], draining: Mapping[str, int]) -> NodeTable:
        """From Ray's table of nodes, and its draining nodes with their deadlines in ms since 1970 (0: none)."""
        listed = list(nodes)
        alive = frozenset(str(node["NodeID"]) for node in listed if node["Alive"])
        dead = {str(node["NodeID"]): node.get("DeathReason") for node in listed if not node["Alive"]}
        return NodeTable(
            alive=alive,
            dead=frozenset(dead),
            draining={name: ms / 1000 if ms else math.inf for name, ms in draining.items() if name in alive},
            expected=frozenset(name for name, reason in dead.items() if reason in _EXPECTED),
        )

    def fate(self, node: str) -> Machine:
        """The state of a node. One that the head does not know (any more) was lost."""
        if node in self.draining or node in self.expected:
            return "drained"
        return "there" if node in self.alive else "lost"

    def seconds_left(self, node: str, now: float | None = None) -> float:
        """How long a draining node will be there; ``inf`` if unknown, or if it is not draining."""
        return self.draining.get(node, math.inf) - (time.time() if now is None else now)


def read_nodes() -> NodeTable:
    """Ask the head. Waits for as long as it does not answer."""
    return NodeTable.of(*read_node_tables())


def fate_of(node: str) -> Machine:
    """:meth:`NodeTable.fate` now."""
    return read_nodes().fate(node)


def own_node() -> str:
    """The id of the node that this worker process runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


POLL_SECONDS = 2.0
_STEP_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
_RAYS_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""After so many seconds without the head Ray ends the process, whatever it does."""
_RAYS_DEFAULT = 60.0


def _rays_limit() -> float:
    try:
        seconds = float(os.environ.get(_RAYS_LIMIT, _RAYS_DEFAULT))
    except ValueError:  # Ray itself ends a process for it, or takes its own
        return _RAYS_DEFAULT
    return seconds if 0 < seconds < math.inf else _RAYS_DEFAULT


class Silence:
    """How long the other side has not answered, in seconds that this process was running.

    A process that was stopped, or a machine that slept, has not listened meanwhile: of such a gap little counts.
    """

    def __init__(self, now: float) -> None:
        self._last = now
        self.seconds = 0.0

    def answered(self, now: float) -> None:
        """It answered."""
        self._last, self.seconds = now, 0.0

    def tick(self, now: float) -> float:
        """Still no answer: since when. To be called about every second."""
        self.seconds += min(now - self._last, _STEP_SECONDS)
        self._last = now
        return self.seconds


class NodeWatch:
    """Reads the node table every few seconds in a thread. It begins with :meth:`start`.

    ``read`` may block for as long as the head does not answer. After ``limit`` seconds without an answer the head is
    lost; None: half of Ray's own limit.
    """

    def __init__(
        self,
        address: str,
        read: Callable[[], NodeTable] = read_nodes,
        poll_seconds: float = POLL_SECONDS,
        limit: float | None = None,
    ) -> None:
        self._address = address
        self._read = read
        self._poll_seconds = poll_seconds
        self._limit = limit if limit is not None else _rays_limit() / 2
        self._silence = Silence(time.monotonic())
        self._answers = threading.Condition()
        self._answered = 0
        self._stop = threading.Event()
        self._ask_now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node watch", daemon=True)
        self._listeners: list[Callable[[NodeTable], None]] = []
        self._table: NodeTable | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more. Waits for the answer to the last question, but not for long."""
        self._stop.set()
        self._ask_now.set()
        self._thread.join(_CLOSE_SECONDS)

    def listen(self, listener: Callable[[NodeTable], None]) -> Callable[[], None]:
        """Call ``listener`` with the present table, if any, and with each different one, in the watch's thread.

        Returns:
            A function that ends this.
        """
        with self._answers:
            self._listeners.append(listener)
            if self._table is not None:
                listener(self._table)

        def end() -> None:
            with self._answers:
                self._listeners.remove(listener)

        return end

    def check(self) -> None:
        """To be called about every second by whoever waits for the cluster.

        Raises:
            ClusterLostError: the head has not answered for too long.
        """
        with self._answers:
            silent = self._silence.tick(time.monotonic())
        if silent > self._limit:
            raise ClusterLostError(
                f"the head of the Ray cluster at {self._address} has not answered for {self._limit:.0f} s: it is gone, "
                "with everything that ran there. Committed rows stay; run the same command again, on the "
                "cluster's new head, to continue."
            )

    def confirm(self) -> None:
        """Return once the head answers a question that was asked after this call.

        Raises:
            ClusterLostError: it does not.
        """
        with self._answers:
            # The answer under way may be to a question from before; the one after it is not.
            wanted = self._answered + 2
            while self._answered < wanted and not self._stop.is_set():
                self._ask_now.set()
                self._answers.wait(timeout=1.0)
                self.check()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(Exception):  # Ray has many names for a head that is away; check() tells
                self._take(self._read())
            self._ask_now.wait(self._poll_seconds)
            self._ask_now.clear()

    def _take(self, table: NodeTable) -> None:
        with self._answers:
            self._silence.answered(time.monotonic())
            self._answered += 1
            if table != self._table and not self._stop.is_set():
                self._table = table
                for listener in self._listeners:
                    listener(table)
            self._answers.notify_all()
