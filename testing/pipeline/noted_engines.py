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
_STEP_SECONDS = 0.05


class _SlowEngine(FakeEngine):
    """One with 64 slots takes as long for a step as one with 4. ``note``: gets the number of rows that are done."""

    def __init__(self, slots: int, note: Path) -> None:
        super().__init__(slots=slots)
        self._note = note
        self._facts = json.loads(note.read_text())
        self._rows = 0

    def step(self) -> list[Generation]:
        time.sleep(_STEP_SECONDS)
        done = super().step()
        self._rows += len(done)
        _write(self._note, {**self._facts, "rows": self._rows})
        return done


def _note(job: Job) -> Path:
    folder = Path(job.storage.url, layout.SCRATCH).parent / _NOTES
    folder.mkdir(parents=True, exist_ok=True)
    note = {"slots": job.config.engine.max_num_seqs}
    path = folder / f"{os.getpid()}.json"
    _write(path, note)
    return path


def _write(path: Path, note: dict[str, Any]) -> None:
    """In one piece: the process may be killed at any moment."""
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps(note))
    aside.replace(path)


def noted_engine(job: Job, num_threads: int | None) -> EngineLike:
    """The real one."""
    _note(job)
    return load_engine(job, num_threads)


def noted_slow_engine(job: Job, num_threads: int | None) -> EngineLike:
    """A fake one whose steps take a while."""
    return _SlowEngine(job.config.engine.max_num_seqs, _note(job))


def notes_of(output: str | Path) -> list[dict[str, Any]]:
    """The notes of the actors of all runs into this output."""
    folder = Path(output, layout.SCRATCH).parent / _NOTES
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
