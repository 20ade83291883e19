"""A real engine that counts its work in a file that survives a kill; a chosen prompt kills its process."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.codec import Generation, Request
from pipeline.plan.job import Job
from pipeline.worker.engine_thread import EngineLike
from pipeline.worker.load_engine import load_engine

_LAYOUT = struct.Struct("qqd")
_STEPS_BETWEEN_LOOKS = 8


@dataclass(frozen=True, kw_only=True)
class Work:
    """Tokens generated, those of unfinished rows included, and seconds spent in engine steps."""

    tokens: int
    busy_seconds: float


class CountedEngine:
    """Forwards every call to ``engine`` and keeps the counts in a memory-mapped file, which outlives the process.

    ``pace``: seconds that a step takes at least, as on a slower device.
    """

    def __init__(self, engine: EngineLike, path: Path, pace: float = 0.0) -> None:
        self._engine = engine
        self._pace = pace
        self._live: dict[str, Request] = {}
        self._finished = self._steps = 0
        self._busy = 0.0
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def add(self, request: Request) -> None:
        self._engine.add(request)
        self._live[request.request_id] = request

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        del self._live[request_id]

    def has_work(self) -> bool:
        return self._engine.has_work()

    def step(self) -> list[Generation]:
        begin = time.perf_counter()
        done = self._engine.step()
        took = time.perf_counter() - begin
        self._busy += took
        time.sleep(max(0.0, self._pace - took))
        for generation in done:
            del self._live[generation.request_id]
            self._finished += len(generation.token_ids)
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0 or not self._live:
            committed = self._engine.committed  # type: ignore[attr-defined]
            running = sum(len(committed(request_id)) for request_id in self._live)
            self._map[:] = _LAYOUT.pack(self._finished, running, self._busy)
        return done


def counted_engine(job: Job, num_threads: int | None, folder: str, pace: float = 0.0) -> CountedEngine:
    """The job's engine; the counts are in ``folder``, in a file named after this process's id."""
    engine = load_engine(job, num_threads)
    return CountedEngine(engine, Path(folder) / f"{os.getpid()}-{time.time_ns()}", pace)


def work_done(folder: Path) -> Mapping[int, Work]:
    """The work of each process, by process id."""
    found: dict[int, Work] = {}
    for path in sorted(folder.iterdir()):
        raw = path.read_bytes()
        if len(raw) == _LAYOUT.size:
            finished, running, busy = _LAYOUT.unpack(raw)
            pid = int(path.name.split("-")[0])
            before = found.get(pid, Work(tokens=0, busy_seconds=0.0))
            found[pid] = Work(tokens=before.tokens + finished + running, busy_seconds=before.busy_seconds + busy)
    return found
