"""Keep the garbage collector from rescanning long-lived objects, which takes a tenth of a second."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_what_is_there", "nothing_collected"]


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Context for imports: modules stay, and would be rescanned again and again."""
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
