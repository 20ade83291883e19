"""The node table: Ray's reports of nodes, as the pipeline understands them."""

from __future__ import annotations

import math

from pipeline.cluster.node_watch import NodeTable

THERE, DRAINING, LOST, TAKEN, IDLE, ENDED = "there", "draining", "lost", "taken", "idle", "ended"


def node(name: str, reason: int | None = None) -> dict[str, object]:
    return {"NodeID": name, "Alive": reason is None, "DeathReason": reason or 0}


def test_a_nodes_end_was_announced_or_not() -> None:
    listed = [node(THERE), node(DRAINING), node(LOST, 2), node(TAKEN, 3), node(IDLE, 4), node(ENDED, 1)]
    table = NodeTable.of(listed, {DRAINING: 0, TAKEN: 5})
    fates = {name: table.fate(name) for name in (THERE, DRAINING, LOST, TAKEN, IDLE, ENDED, "never heard of")}
    assert fates == {
        THERE: "there", DRAINING: "drained", LOST: "lost", TAKEN: "drained", IDLE: "drained", ENDED: "drained",
        "never heard of": "lost",
    }  # fmt: skip
    assert table.dead == {LOST, TAKEN, IDLE, ENDED}
    assert set(table.draining) == {DRAINING}, "a node that is gone is not being drained any more"


def test_deadlines_are_in_seconds_and_may_be_missing() -> None:
    table = NodeTable.of([node("a"), node("b"), node("c")], {"a": 1_000_500, "b": 0})
    assert table.seconds_left("a", now=990) == 10.5
    assert table.seconds_left("b", now=990) == math.inf
    assert table.seconds_left("c", now=990) == math.inf
