"""Global state and log of the pretend devices."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class MixError(RuntimeError):
    """An operation got tensors of different devices, or a kernel was launched on a device that is not current."""


class WaitError(RuntimeError):
    """The host waited for the device where that is not allowed."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kernel as it is compiled.

    Attributes:
        constants: types of its arguments, its constants and its options, by name.
        facts: facts of the arguments' values that the compiler uses, such as "divisible by 16", by name.
    """

    constants: tuple[tuple[str, Any], ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel: its name, its device, and its variant, or the recorder's result."""

    name: str
    device: int
    made: Any = None


@dataclass
class Log:
    """Counts since the last :meth:`clear`.

    Attributes:
        waits: waits of the host for the device, by operation and place.
        event_waits: waits for an event, the intended way to fetch results.
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
        """Reset all counts."""
        self.__init__()  # type: ignore[misc]


@dataclass
class State:
    """State of all devices.

    Attributes:
        memory: "cpu", or "meta" if tensors have no contents.
        strict: whether waits are errors.
        captured: work of the graph that is being captured; None outside of a capture.
        made: storages of the capture itself: other work never sees writes to these.
    """

    memory: str = "cpu"
    strict: bool = False
    captured: list[Callable[[], object]] | None = None
    made: set[int] = field(default_factory=set)


STATE = State()
LOG = Log()


@contextmanager
def strict() -> Iterator[Log]:
    """Context: waits are errors; yields an empty log."""
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
    """Count a wait of the host for the device.

    Raises:
        WaitError: under :func:`strict`, or in a capture.
    """
    where = place()
    LOG.waits[f"{what} at {where}"] += 1
    if STATE.captured is not None:
        raise WaitError(f"{what} at {where}: a capture cannot hold work that the host waits for")
    if STATE.strict:
        raise WaitError(f"{what} at {where}: the host waits for the device")
