"""Groups of stages side by side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from pipeline.commands.chain_flow import merged


def test_a_stream_may_wait_for_what_the_consumer_makes_of_another() -> None:
    due: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def first() -> Iterator[int]:
        yield from (1, 2)

    def second() -> Iterator[int]:
        while (item := due.get()) is not None:
            yield 10 * item

    seen = []
    for item in merged([first, second], lambda: due.put(None)):
        seen.append(item)
        if item < 10:
            due.put(item)
        if len(seen) == 4:
            due.put(None)
    assert sorted(seen) == [1, 2, 10, 20]


def test_if_one_fails_the_others_end_and_what_they_gave_is_not_lost() -> None:
    ended, go_on = threading.Event(), threading.Event()

    def fails() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    def lasts() -> Iterator[int]:
        try:
            yield 2
            go_on.wait(10)
            yield from range(100, 100_000)
        finally:
            ended.set()

    seen: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        seen.extend(merged([fails, lasts], go_on.set))
    assert ended.wait(5)
    assert {1, 2} <= set(seen)
    assert len(seen) < 10, "it ends with its next item"
