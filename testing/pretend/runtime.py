"""Streams, events and graphs of pretend devices. Work runs when it is launched, so little remains to wait for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from testing.pretend import memory
from testing.pretend.guard import guard
from testing.pretend.state import LOG, STATE, waits


class Stream:
    """A stream of one device."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        LOG.used[guard().device] += 1
        self.device = torch.device("cuda", _index(device))
        self.cuda_stream = id(self)

    def wait_stream(self, other: Stream) -> None:
        """Nothing to do: work runs in launch order."""

    def synchronize(self) -> None:
        """Count a wait for the device."""
        waits("Stream.synchronize")
        memory.arrive()

    def query(self) -> bool:
        """All work is done."""
        return True


class Event:
    """A point in a stream's work that the host can wait for."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._mark: int | None = None
        self._at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Record the time, and which copies come before."""
        LOG.used[guard().device] += 1
        self._mark, self._at = memory.mark(), time.perf_counter()

    def synchronize(self) -> None:
        """Carry out the copies before the event."""
        LOG.event_waits += 1
        if self._mark is not None:
            memory.arrive(self._mark)

    def query(self) -> bool:
        """All work is done."""
        return True

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return (later._at - self._at) * 1e3


class Graph:
    """Captured work. A replay runs it again on the same memory."""

    _pools = itertools.count(1)

    def __init__(self, keep_graph: bool = False) -> None:
        self._work: list[Callable[[], object]] = []
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        """Record work from now on instead of running it."""
        if STATE.captured is not None:
            raise RuntimeError("a capture is under way already")
        self._pool = pool
        STATE.captured = self._work
        STATE.made.clear()

    def capture_end(self) -> None:
        """Stop recording."""
        STATE.captured = None

    def replay(self) -> None:
        """Run the recorded work."""
        LOG.replays += 1
        LOG.used[guard().device] += 1
        with torch.inference_mode():
            for work in self._work:
                work()

    def pool(self) -> Any:
        """The graph's memory pool."""
        return self._pool

    @classmethod
    def pool_handle(cls) -> tuple[int, int]:
        """A new memory pool."""
        LOG.used[guard().device] += 1
        return (0, next(cls._pools))


_default: dict[int, Stream] = {}
_current: dict[int, Stream] = {}


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    found = None if device is None else torch.device(device).index
    return guard().device if found is None else found


def default_stream(device: Any = None) -> Stream:
    """The initial stream of a device."""
    index = _index(device)
    if index not in _default:
        _default[index] = Stream(index)
    return _default[index]


def current_stream(device: Any = None) -> Stream:
    """The current stream of a device."""
    return _current.get(_index(device)) or default_stream(device)


def set_stream(stream: Stream) -> None:
    """Make a stream its device's current one, and its device the thread's, as torch does."""
    _current[stream.device.index] = stream
    guard().device = stream.device.index
