"""One writer per output: a lease that expires, so that a killed run does not lock its output for good."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline import layout
from pipeline.errors import LeaseError
from pipeline.storage import Storage

__all__ = ["Lease", "hold_lease"]

TTL_SECONDS = 60.0
_SETTLE_SECONDS = 0.05


class Lease:
    """A held lease; renewed in the background until released."""

    def __init__(self, storage: Storage, ttl: float = TTL_SECONDS) -> None:
        """Take the lease.

        Raises:
            LeaseError: another live run holds it.
        """
        self._storage = storage
        self._ttl = ttl
        self.token = uuid.uuid4().hex
        holder = _holder(storage)
        if holder is not None and holder["expires"] > time.time() and not _is_dead(holder):
            raise LeaseError(
                f"{storage.url}: process {holder['pid']} on {holder['host']} is writing there (its lease ends in "
                f"{holder['expires'] - time.time():.0f} s unless renewed). Wait for it, end it, or use another folder."
            )
        self._write()
        # Of two that came at once the later write won; both look again after it is surely there.
        time.sleep(_SETTLE_SECONDS)
        self.check()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseError unless the lease is still ours."""
        holder = _holder(self._storage)
        if holder is None or holder["token"] != self.token:
            raise LeaseError(f"{self._storage.url}: another run took over this output. This one stops.")

    def release(self) -> None:
        """Give it back, if it is still ours."""
        self._stop.set()
        self._thread.join()
        holder = _holder(self._storage)
        if holder is not None and holder["token"] == self.token:
            self._storage.delete(layout.LEASE)

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            holder = _holder(self._storage)
            if holder is None or holder["token"] != self.token:
                return  # lost; check() says so before the next commit
            self._write()

    def _write(self) -> None:
        raw = {
            "token": self.token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "expires": time.time() + self._ttl,
        }
        with self._storage.create(layout.LEASE) as file:
            file.write(json.dumps(raw).encode())


@contextmanager
def hold_lease(storage: Storage) -> Iterator[Lease]:
    """Hold the output's lease during a block.

    Raises:
        LeaseError: another live run holds it.
    """
    lease = Lease(storage)
    try:
        yield lease
    finally:
        lease.release()


def _holder(storage: Storage) -> dict[str, Any] | None:
    try:
        return json.loads(storage.read(layout.LEASE))
    except FileNotFoundError:
        return None


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is gone."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
