"""How much of the host's memory is free, for this process: of the machine, and of the container it may run in."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (  # limit and use in bytes: version 2, version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_NO_LIMIT = 1 << 60  # version 1 has a number as large where there is no limit
_LEAST_BYTES, _SHARE = 512 << 20, 0.25  # of a KV pool: of the memory that is free, a share and a least


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    found = [free for free in (_of_machine(), *(_of_container(*pair) for pair in _CGROUPS)) if free is not None]
    return min(found, default=None)


def pool_bytes(free: int | None) -> int:
    """Bytes that a KV pool on a CPU may take by default, of this number of free bytes (None: unknown)."""
    return _LEAST_BYTES if free is None else max(_LEAST_BYTES, int(_SHARE * free))


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        return None
    return sizes[0] * 1024 if sizes else None


def _of_container(limit: Path, used: Path) -> int | None:
    try:
        most = int(limit.read_text())
        return None if most > _NO_LIMIT else max(0, most - int(used.read_text()))
    except (OSError, ValueError):  # none, or "max": no limit
        return None
