"""The watch of the nodes: who gets which message and when, and how long a silent head is waited for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.cluster.node_watch import NodeTable, NodeWatch, Silence
from pipeline.errors import ClusterLostError


class Head:
    """Answers with its ``table``; while it is away, raises or (``hangs``) does not return."""

    def __init__(self) -> None:
        self.table = NodeTable(alive=frozenset({"a"}))
        self.there = threading.Event()
        self.there.set()
        self.hangs = False
        self.asked = 0

    def read(self) -> NodeTable:
        self.asked += 1
        if self.hangs:
            self.there.wait()
        if not self.there.is_set():
            raise ConnectionError("the head is away")
        return self.table


def check_for(watch: NodeWatch, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
        watch.check()


@pytest.fixture
def head() -> Head:
    return Head()


@pytest.fixture
def watch(head: Head) -> Iterator[NodeWatch]:
    watch = NodeWatch("10.0.0.1:6379", head.read, poll_seconds=0.01, limit=0.3)
    watch.start()
    yield watch
    watch.close()
    head.there.set()


def test_silence_counts_the_time_in_which_this_process_ran() -> None:
    silence = Silence(0.0)
    assert [silence.tick(now) for now in (1.0, 2.0, 3.5)] == [1.0, 2.0, 3.5]
    assert silence.tick(1000.0) == 5.5, "it was stopped for a quarter of an hour: the head may have answered all along"
    silence.answered(1001.0)
    assert silence.tick(1002.0) == 1.0


def test_each_change_is_told_once(head: Head, watch: NodeWatch) -> None:
    said: queue.SimpleQueue[NodeTable] = queue.SimpleQueue()
    end = watch.listen(said.put)
    assert said.get(timeout=10) == head.table
    changed = head.table = NodeTable(alive=frozenset({"a", "b"}), draining={"a": 7.0})
    assert said.get(timeout=10) == changed
    late: queue.SimpleQueue[NodeTable] = queue.SimpleQueue()
    watch.listen(late.put)
    assert late.get(timeout=10) == changed, "later listeners get the known state"
    end()
    head.table = NodeTable(alive=frozenset())
    assert late.get(timeout=10) == head.table
    watch.confirm()
    assert said.empty(), "it is told no more"


def test_a_head_that_does_not_answer_is_lost_after_a_while(head: Head, watch: NodeWatch) -> None:
    watch.confirm()
    head.hangs = True
    head.there.clear()
    begin = time.monotonic()
    with pytest.raises(ClusterLostError, match=r"10\.0\.0\.1:6379 has not answered .* run the same command again"):
        check_for(watch, 10)
    assert time.monotonic() - begin >= 0.25
    with pytest.raises(ClusterLostError):
        watch.confirm()


def test_a_head_that_comes_back_in_time_is_not_lost(head: Head, watch: NodeWatch) -> None:
    for _ in range(3):
        head.there.clear()
        check_for(watch, 0.15)
        head.there.set()
        watch.confirm()
        watch.check()


def test_the_head_is_not_asked_more_often_than_agreed(head: Head) -> None:
    watch = NodeWatch("a:1", head.read, poll_seconds=60, limit=1)
    watch.start()
    watch.confirm()  # which may ask at once
    asked = head.asked
    time.sleep(0.1)
    assert head.asked == asked <= 3
    watch.close()
