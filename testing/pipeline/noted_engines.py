"""Engine loaders that leave a note of each actor in the output."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.codec import Generation
from pipeline.plan.job import Job
from pipeline.worker.engine_thread import EngineLike
from pipeline.worker.load_engine import load_engine
from testing.pipeline.fakes import FakeEngine

_NOTES = "actors"
_START_SECONDS = 60.0


class _PairEngine(FakeEngine):
    """Works once two actors have started; ``folder``: their notes."""

    def __init__(self, slots: int, folder: Path) -> None:
        super().__init__(slots=slots)
        self._folder = folder

    def step(self) -> list[Generation]:
        end = time.monotonic() + _START_SECONDS
        while len(list(self._folder.glob("*.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        return super().step()


def _note(job: Job) -> Path:
    folder = Path(job.storage.url, layout.SCRATCH).parent / _NOTES
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}.json"
    path.write_text(json.dumps({"slots": job.config.engine.max_num_seqs}))
    return path


def noted_engine(job: Job, num_threads: int | None) -> EngineLike:
    """The real one."""
    _note(job)
    return load_engine(job, num_threads)


def noted_pair_engine(job: Job, num_threads: int | None) -> EngineLike:
    """A fake one that waits for a second actor, but not for ever."""
    return _PairEngine(job.config.engine.max_num_seqs, _note(job).parent)


def notes_of(output: str | Path) -> list[dict[str, Any]]:
    """The notes of the actors of all runs into this output."""
    folder = Path(output, layout.SCRATCH).parent / _NOTES
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
