"""Which process this is, and whether one that left its identity behind has ended.

A host name and a process id name no process: containers share host names, process ids are given again, and each PID
namespace counts its own. So an identity also holds the boot, the namespace and the moment the process started
(Linux: ``/proc``). Where one of these is unknown or another's, nobody can tell: then a lease has to run out.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessIdentity"]

_PROC = Path("/proc")
_ENDED = "ZX"
"""States of processes that have ended and are not yet reaped."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process of some machine.

    Attributes:
        host: its name, for people.
        boot: id of the machine's boot; empty where it is unknown.
        namespace: of process ids; empty where it is unknown.
        pid: in that namespace.
        started: clock ticks after the boot; -1 where it is unknown.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """Of this process."""
        pid = os.getpid()
        state = _state(pid)
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            namespace=_namespace(),
            pid=pid,
            started=-1 if state is None else state[1],
        )

    def has_ended(self) -> bool:
        """Whether it is known to have ended: False where this process cannot tell."""
        known = self.boot and self.namespace and self.started >= 0
        if not known or (self.boot, self.namespace) != (_boot(), _namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is somebody else's: that says nothing of when it started
        state = _state(self.pid)
        return state is not None and (state[1] != self.started or state[0] in _ENDED)


@functools.cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, int] | None:
    """``(state, clock ticks from the boot to its start)`` of a process; None where that cannot be read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
