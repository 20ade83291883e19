"""Two streams of units as one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from pipeline.cluster.prefetch import interleaved


def fed(source: queue.SimpleQueue[int | None]) -> Iterator[int]:
    while (item := source.get()) is not None:
        yield item


def test_the_first_stream_goes_first_and_none_waits_for_the_other() -> None:
    later: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    whole = interleaved(fed(later), iter(range(3)), lambda: None)
    seen = [next(own for own in whole if own is not None)]
    later.put(100)
    rest = []
    for own in whole:
        if own is not None:
            rest.append(own)
        if len(rest) == 3:
            later.put(None)
    assert seen == [0]
    assert sorted(rest) == [1, 2, 100]


def test_it_gives_none_while_there_is_nothing_so_that_a_consumer_can_leave() -> None:
    later: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    left = threading.Event()

    def waits() -> Iterator[int]:
        yield from fed(later)
        left.set()

    whole = interleaved(waits(), iter(()), lambda: later.put(None))
    assert next(whole) is None
    whole.close()
    assert left.wait(5), "the stream that waited was woken"


def test_an_error_of_either_stream_is_raised() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    for streams in ((fails(), iter([2, 3])), (iter([2, 3]), fails())):
        with pytest.raises(ValueError, match="broken"):
            list(interleaved(*streams, lambda: None))
