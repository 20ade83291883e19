"""A real engine that kills its process: at chosen prompts, at the kth row of each process, or at random rows."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.codec import Generation, Request
from pipeline.plan.job import Job
from pipeline.worker.engine_thread import EngineLike
from pipeline.worker.load_engine import load_engine


@dataclass(frozen=True, kw_only=True)
class Fault:
    """When an engine kills its process with SIGKILL.

    Attributes:
        poison: at this prompt.
        strikes: at this row of the process, counted from 1; 0 is never.
        chance: at a row with this probability, drawn again in each process.
        start_seconds: that the engine takes to start, at least.
    """

    poison: str | None = None
    strikes: int = 0
    chance: float = 0.0
    start_seconds: float = 0.0


class FaultyEngine:
    """Forwards every call to ``engine``. ``poison``: token ids of the fault's prompt."""

    def __init__(self, engine: EngineLike, fault: Fault, poison: tuple[int, ...] | None) -> None:
        self._engine, self._fault, self._poison = engine, fault, poison
        self._rows = 0
        self._dies = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: Request) -> None:
        self._rows += 1
        # Of the system's: a fork has the state of Python's own generator from its parent.
        chosen = random.SystemRandom().random() < self._fault.chance
        self._dies |= chosen or self._rows == self._fault.strikes or request.prompt_token_ids == self._poison
        self._engine.add(request)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def has_work(self) -> bool:
        return self._engine.has_work()

    def step(self) -> list[Generation]:
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._engine.step()


def faulty_engine(job: Job, num_threads: int | None, folder: str, fault: Fault) -> FaultyEngine:
    """The job's engine with a fault; each start leaves a file in ``folder``."""
    begin = time.monotonic()
    engine = load_engine(job, num_threads)
    time.sleep(max(0.0, fault.start_seconds - (time.monotonic() - begin)))
    Path(folder, f"{os.getpid()}-{time.time_ns()}").touch()
    poison = None if fault.poison is None else tuple(engine.tokenizer.encode(fault.poison))  # type: ignore[attr-defined]
    return FaultyEngine(engine, fault, poison)
