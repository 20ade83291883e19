"""CPU seconds of a process and of all processes that it starts, also of those that leave its tree.

Ray's workers are nobody's children in the end, and nobody waits for them, so the system adds up their time nowhere.
Hence a thread looks at them while they live, and keeps the last figures of each.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["ProcessTree"]

_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """A context manager in which the processes under one are watched; afterwards :attr:`seconds` is their CPU time.

    Args:
        root: id of the process at the top.
    """

    def __init__(self, root: int) -> None:
        self._known = {root}
        self._spent: dict[tuple[int, str], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ProcessTree:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """User and system time of all processes seen."""
        return sum(self._spent.values()) / _TICKS

    def _watch(self) -> None:
        self._look()
        while not self._stop.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        """A child is known by its parent, and stays known when it loses that one."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    found[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # it has ended
                    continue
        grown = True
        while grown:
            own = {pid for pid, words in found.items() if pid in self._known or int(words[1]) in self._known}
            grown = not own <= self._known
            self._known |= own
        for pid in self._known & set(found):
            words = found[pid]
            # Those of children that were waited for are left out: these were seen themselves.
            self._spent[pid, words[19]] = int(words[11]) + int(words[12])
