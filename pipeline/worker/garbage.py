"""When a process that generates looks for garbage: not through what stays anyway, which takes a tenth of a second."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_what_is_there", "nothing_collected"]


@contextmanager
def nothing_collected() -> Iterator[None]:
    """A block in which modules are imported: they stay, and would be looked through again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_what_is_there() -> None:
    """Leave all objects of now out of later collections; for a process that is the caller's own."""
    gc.freeze()
