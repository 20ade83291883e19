"""Identifies a process across time and containers, to tell whether the holder of a lease has ended.

Host name and process id do not identify a process: containers share host names, process ids are reused, and each PID
namespace counts its own. So an identity also holds the boot id, the namespace and the start time of the process (Linux:
``/proc``). If one of these is unknown or differs from this process's, nobody can tell, and the lease has to expire.
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
"""States (in ``/proc/PID/stat``) of processes that have ended but are not reaped yet."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process on some machine.

    Attributes:
        host: host name, for messages.
        boot: id of the machine's boot; empty if unknown.
        namespace: its PID namespace; empty if unknown.
        pid: process id in that namespace.
        started: start time in clock ticks after the boot; -1 if unknown.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """The identity of this process."""
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
        """Whether the process is known to have ended; False if this process cannot tell."""
        known = self.boot and self.namespace and self.started >= 0
        if not known or (self.boot, self.namespace) != (_boot(), _namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it belongs to another user: says nothing about when it started
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
    """``(state, start time in clock ticks after the boot)`` of a process; None if that cannot be read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
