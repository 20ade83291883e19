"""What the pretend devices know: whether waits are errors, what is being captured, what happened."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LOG", "STATE", "Launch", "Log", "MixError", "State", "WaitError", "place", "strict", "waits"]


class MixError(RuntimeError):
    """An operation was given tensors of different devices, or a kernel ran beside the current device."""


class WaitError(RuntimeError):
    """The host waited for the device where it must not."""


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel: its name, its device, and what the recorder made of it."""

    name: str
    device: int
    made: Any = None


@dataclass
class Log:
    """What happened since the last :meth:`clear`.

    Attributes:
        waits: how often the host waited for the device, by what for and where.
        event_waits: how often it waited for an event, which is how results are meant to be fetched.
        copies: copies between host and device, by kind.
        used: runtime calls that concern the calling thread's current device, by that device.
        launches: of Triton kernels, in order.
        replays: of CUDA graphs.
    """

    waits: Counter[str] = field(default_factory=Counter)
    event_waits: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    used: Counter[int] = field(default_factory=Counter)
    launches: list[Launch] = field(default_factory=list)
    replays: int = 0

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


@dataclass
class State:
    """Of all devices.

    Attributes:
        memory: "cpu", or "meta" where tensors have no contents.
        strict: whether waits are errors.
        captured: the work of the graph that is being captured; None while none is.
    """

    memory: str = "cpu"
    strict: bool = False
    captured: list[Callable[[], object]] | None = None


STATE = State()
LOG = Log()


@contextmanager
def strict() -> Iterator[Log]:
    """Make waits errors; yields an empty log."""
    before, STATE.strict = STATE.strict, True
    LOG.clear()
    try:
        yield LOG
    finally:
        STATE.strict = before


def place() -> str:
    """File and line of the innermost caller outside of this package and torch."""
    for frame in reversed(traceback.extract_stack()):
        if not any(part in frame.filename for part in ("/testing/pretend/", "/site-packages/", "/contextlib.py")):
            return f"{frame.filename}:{frame.lineno}"
    return "?"


def waits(what: str) -> None:
    """Note that the host waits for the device.

    Raises:
        WaitError: under :func:`strict`, and in a capture.
    """
    where = place()
    LOG.waits[f"{what} at {where}"] += 1
    if STATE.captured is not None:
        raise WaitError(f"{what} at {where}: a capture cannot hold work that the host waits for")
    if STATE.strict:
        raise WaitError(f"{what} at {where}: the host waits for the device")
