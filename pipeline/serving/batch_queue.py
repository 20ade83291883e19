"""The queue of a server: starts a process for each batch that is due, by priority and then by age.

The queue is in the store: a server that starts goes on with it. Several servers may share it, as the lease of a batch
keeps a second process away.
"""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from pipeline.child_process import start_child
from pipeline.codec import redact
from pipeline.commit.lease import current_holder
from pipeline.config import RunConfig
from pipeline.errors import PipelineError
from pipeline.serving import batch_process
from pipeline.serving.api_objects import Batch, Status
from pipeline.serving.store import Store

_LOOK_SECONDS = 2.0
"""Between two looks at the queue, which other servers fill too; this server's requests wake it."""
_LONGEST_WAIT = 300.0
_LIGHT = 1
"""Processes at once that check and close batches, in addition to runs."""
_STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class _Child:
    """A process; the server's end of its connection; whether it may run its batch."""

    process: subprocess.Popen[bytes]
    connection: Connection
    runs: bool


class Runner:
    """Works through the queue in a thread.

    ``runs``: batches that run at once on this machine; ``max_requests``: of a batch.
    """

    def __init__(self, store: Store, config: RunConfig, *, runs: int, max_requests: int) -> None:
        self._store, self._config, self._runs, self._max_requests = store, config, runs, max_requests
        self._children: dict[str, _Child] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """Batch -> failures in a row, and when it may be tried again."""
        self._awake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="queue", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue now."""
        self._awake.set()

    def stop(self) -> None:
        """End, with the processes: runs commit their finished units."""
        self._over.set()
        self.wake()
        self._thread.join()
        for child in self._children.values():
            child.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()

    def _work(self) -> None:
        while not self._over.is_set():
            self._awake.clear()
            try:
                self._reap()
                self._start_due()
            except (PipelineError, OSError) as error:
                print(redact(f"the queue cannot be read: {error}"), file=sys.stderr, flush=True)
            self._awake.wait(_LOOK_SECONDS)

    def _start_due(self) -> None:
        runs = sum(child.runs for child in self._children.values())
        lights = len(self._children) - runs
        # Runs that have begun come first: they go on, and their processes on this machine count.
        due = sorted(self._store.open_batches(), key=lambda own: (own.in_progress_at is None, -own.priority, own.id))
        for batch in due:
            waits = time.monotonic() < self._failures.get(batch.id, (0, 0.0))[1]
            light = batch.must_close or batch.has_ended or (batch.status is Status.VALIDATING and runs >= self._runs)
            full = lights >= _LIGHT if light else runs >= self._runs
            if batch.id in self._children or waits or (full and batch.in_progress_at is None):
                continue
            if (holder := current_holder(self._store.lease_of(batch.id))) is not None:
                runs += holder.process is not None and holder.process.host == socket.gethostname()
            elif not full:
                self._start(batch, runs=not light)
                runs, lights = runs + (not light), lights + light

    def _start(self, batch: Batch, *, runs: bool) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = start_child(batch_process.__name__, theirs, {})
        self._children[batch.id] = _Child(process=process, connection=ours, runs=runs)
        ours.send(
            batch_process.Order(config=self._config, batch=batch.id, may_run=runs, max_requests=self._max_requests)
        )
        threading.Thread(target=self._wake_after, args=(process,), daemon=True).start()

    def _wake_after(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self.wake()

    def _reap(self) -> None:
        """Forget processes that have ended; a batch whose process failed waits longer each time."""
        for name, child in list(self._children.items()):
            if (status := child.process.poll()) is None:
                continue
            del self._children[name]
            child.connection.close()
            failures = self._failures.pop(name, (0, 0.0))[0] + 1
            if status != 0:
                wait = min(_LONGEST_WAIT, 2.0 ** (failures - 1))
                self._failures[name] = (failures, time.monotonic() + wait)
                said = f"{name}: its process ended with status {status}; it is tried again in {wait:.0f} s"
                print(said, file=sys.stderr, flush=True)
