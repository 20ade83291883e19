"""The generate actor: one model, one engine, one KV pool; several units at once; results staged at once."""

from __future__ import annotations

import os
import sys
import time
import traceback

import pyarrow as pa

from pipeline import layout
from pipeline.cluster import envelope
from pipeline.errors import EngineDiedError
from pipeline.plan.job import Job
from pipeline.storage.protocol import Storage
from pipeline.types import Unit
from pipeline.worker.engine_thread import DroppedError, EngineThread
from pipeline.worker.load_engine import EngineLoader
from pipeline.worker.row_isolation import TallyLike
from pipeline.worker.unit_worker import UnitWorker

__all__ = ["ENGINE_DIED", "GenerateActor"]

ENGINE_DIED = 70
"""Exit status of an actor whose engine failed: its device state cannot be trusted, a fresh process can."""
_SWITCH_SECONDS = 2e-4
"""How long a thread may keep the interpreter's lock from another. The engine's thread needs it many times a step,
and would stand still for Python's 5 ms each time while a unit is encoded; so both go on side by side."""


class GenerateActor:
    """The class of the pool's Ray actors; :meth:`run` is called from several threads at once."""

    def __init__(self, job: Job, num_threads: int, load: EngineLoader, tally: TallyLike) -> None:
        """Load the model.

        Raises:
            EngineDiedError: the processes before this one died again and again, and nothing was achieved.
        """
        verdict = tally.start(_slot())
        if not verdict.go_on:
            raise EngineDiedError(f"{verdict.deaths} processes in a row died without any unit being done.")
        try:
            engine = load(job, num_threads)
        except Exception as error:
            _leave_note(job.storage, error)
            raise
        sys.setswitchinterval(_SWITCH_SECONDS)
        slots = job.config.engine.max_num_seqs
        thread = EngineThread(engine, on_fatal=lambda error: _die(job.storage, error), slots=slots)
        self._tally = tally
        self._worker = UnitWorker(job, thread, tally)

    def ready(self) -> None:
        """Returns once the model is loaded."""

    def run(self, label: str, copy: int, block: pa.Table) -> str | None:
        """Do a unit, from its envelope.

        Args:
            label: the unit.
            copy: see :meth:`UnitWorker.run`. A copy of a unit that may have killed a process is declined.
            block: its envelope.

        Returns:
            The commit record of the staged unit; None where it was declined or dropped.
        """
        unit = Unit.from_json(label)
        if copy and self._tally.suspects(unit.unit_id):
            return None
        try:
            return self._worker.run(unit, envelope.unpack(block), copy).to_json()
        except DroppedError:
            return None

    def drop(self, unit_id: str, copy: int) -> None:
        """See :meth:`UnitWorker.drop`."""
        self._worker.drop(unit_id, copy)


def _slot() -> str:
    """What stays the same when this actor's process dies and Ray starts it anew."""
    import ray

    return ray.get_runtime_context().get_actor_id() or "none"


def _leave_note(storage: Storage, error: BaseException) -> None:
    """Why this process ends, where the driver finds it: Ray keeps the traces of its workers to itself."""
    note = "".join(traceback.format_exception(error))
    print(f"generate actor: ending this process\n{note}", file=sys.stderr, flush=True)
    with storage.create(layout.crash_note(time.time(), os.getpid())) as file:
        file.write(note.encode())


def _die(storage: Storage, error: BaseException) -> None:
    """Leave a note and end the process at once: the units in flight go to a fresh one."""
    try:
        _leave_note(storage, error)
    finally:
        os._exit(ENGINE_DIED)
