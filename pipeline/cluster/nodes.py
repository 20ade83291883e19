"""The nodes of a cluster as Ray's head knows them: which are there, which are being drained, which are gone and why."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.cluster.private_ray import read_node_tables
from pipeline.worker.crash_bisection import Machine

__all__ = ["NodeTable", "fate_of", "own_node", "read_nodes"]

_EXPECTED = frozenset({1, 3, 4})
"""Of Ray's reasons for a node's death: it ended by itself, was drained as it is being taken away, or for being idle."""


@dataclass(frozen=True, kw_only=True)
class NodeTable:
    """Nodes by id.

    Attributes:
        alive: nodes that are there, those that are being drained among them.
        dead: nodes that are gone.
        draining: node -> until when it will be there, seconds since 1970; ``inf`` where nobody said.
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
        """What became of a node. One that the head does not know (any more) was lost."""
        if node in self.draining or node in self.expected:
            return "drained"
        return "there" if node in self.alive else "lost"

    def seconds_left(self, node: str, now: float | None = None) -> float:
        """How long a draining node will be there; ``inf`` where nobody said, or where it is not being drained."""
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
