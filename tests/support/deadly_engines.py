"""Engine loaders for real actor processes that die: of a row, at their start, or never. Importable by workers."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.codec import Generation
from pipeline.job import Job
from tests.support.pipeline_fakes import FakeEngine

__all__ = ["DEADLY_TOKEN", "deadly_row_engine", "dies_at_start_engine", "harmless_engine"]

DEADLY_TOKEN = 6
"""A step with a request whose prompt has this token id ends the process, as a segmentation fault would."""


class _DeadlyRowEngine(FakeEngine):
    def step(self) -> list[Generation]:
        if any(DEADLY_TOKEN in request.prompt_token_ids for request in self._requests.values()):
            os._exit(139)
        return super().step()


def deadly_row_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine that such a row takes its process from."""
    with Path(job.storage.url).joinpath("starts.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return _DeadlyRowEngine(slots=64)


def harmless_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine that no row harms."""
    return FakeEngine(slots=64)


def dies_at_start_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """No engine: the process ends while it loads, without a word."""
    os._exit(1)
