"""Engine loaders whose engines kill their process (on a row, or at the start), hang, or are slow.

Real actor processes import this module.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from pipeline.codec import Generation, Request
from pipeline.plan.job import Job
from testing.pipeline.fakes import FakeEngine

DEADLY_TOKEN = 6
"""A step with a request whose prompt has this token id ends the process, as a segmentation fault would."""


NINTH = 9
"""The row of a process that ends it in :func:`ninth_row_engine`, whichever row it is."""


class _DeadlyRowEngine(FakeEngine):
    def step(self) -> list[Generation]:
        if any(DEADLY_TOKEN in request.prompt_token_ids for request in self._requests.values()):
            os._exit(139)
        return super().step()


def deadly_row_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine that such a row takes its process from."""
    _note_start(job)
    return _DeadlyRowEngine(slots=64)


class _NinthRowEngine(FakeEngine):
    """A leak, a counter that overflows: no row is to blame."""

    def __init__(self) -> None:
        super().__init__(slots=64)
        self._added = 0

    def add(self, request: Request) -> None:
        self._added += 1
        super().add(request)

    def step(self) -> list[Generation]:
        if self._added >= NINTH:
            os._exit(139)
        return super().step()


def ninth_row_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine that dies at the ninth row of its process."""
    _note_start(job)
    return _NinthRowEngine()


def threaded_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine with a thread of its own, which does not survive a fork."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return _DeadlyRowEngine(slots=64)


def _note_start(job: Job) -> None:
    with Path(job.storage.url).joinpath("starts.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")


def harmless_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine that no row harms."""
    return FakeEngine(slots=64)


def dies_at_start_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """No engine: the process ends while it loads, without a word."""
    os._exit(1)


class _LateEngine(FakeEngine):
    """Its steps take so many seconds; of inf, the second one never ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(slots=64)
        self._seconds = seconds

    def step(self) -> list[Generation]:
        if self._seconds == float("inf") and self.steps:
            threading.Event().wait()
        time.sleep(min(self._seconds, 1.0))
        return super().step()


def one_hangs_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """The job's first engine hangs while it works, the others do not."""
    return _LateEngine(float("inf") if _first(job) else 0.05)


def one_is_slow_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """The job's first engine is twenty times slower than the others."""
    return _LateEngine(1.0 if _first(job) else 0.05)


def steady_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """Every engine takes 0.3 s for a step."""
    return _LateEngine(0.3)


def _first(job: Job) -> bool:
    try:
        Path(job.storage.url).joinpath("first.txt").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
