"""The stages of a run's start and end: how long each took, told to the log as it happens.

Each stage is one line on the logger ``pipeline.stages`` when it is over; one that may take long is announced as well.
The command lines print these lines, with the seconds since the command. A process keeps the seconds of its own stages,
so that an actor can tell the driver.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger(__name__)
_TAKEN: dict[str, float] = {}
_ON_BEGIN: list[Callable[[str], None]] = []
_ON_ANNOUNCE: list[Callable[[str], None]] = []


def announce(text: str) -> None:
    """Say that something begins, or is done."""
    LOGGER.info(text)
    for listen in list(_ON_ANNOUNCE):
        listen(text)


@contextmanager
def announced_to(listen: Callable[[str], None]) -> Iterator[None]:
    """Context: ``listen`` is called with each announcement of this process, from any thread."""
    _ON_ANNOUNCE.append(listen)
    try:
        yield
    finally:
        _ON_ANNOUNCE.remove(listen)


def on_begin(listen: Callable[[str], None]) -> None:
    """From now on, call ``listen`` with the name of each stage that begins in this process."""
    _ON_BEGIN.append(listen)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """A block that is a stage: says at its end how long it took. Nothing is said of a stage that fails."""
    for listen in _ON_BEGIN:
        listen(name)
    begin = time.monotonic()
    yield
    seconds = time.monotonic() - begin
    _TAKEN[name] = _TAKEN.get(name, 0.0) + seconds
    LOGGER.info("%s: %.1f s", name, seconds)


def taken() -> dict[str, float]:
    """Seconds of the stages that ended in this process, by name, in the order of their ends."""
    return dict(_TAKEN)


def seconds_since_start() -> float:
    """Seconds since this process was started; where the system does not tell, since this module was imported."""
    return _BEFORE_IMPORT + time.monotonic() - _IMPORTED


def _age() -> float:
    """Seconds that this process has run."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            begun = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


_BEFORE_IMPORT, _IMPORTED = _age(), time.monotonic()
