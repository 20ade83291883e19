"""The generate actor: one process with one model, one engine and one KV pool; runs several units and stages them."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline import layout, stages
from pipeline.cluster.bisection_actor import RemoteBisection
from pipeline.cluster.metrics import engine_load
from pipeline.cluster.metrics_reporter import report_actor
from pipeline.cluster.node_watch import own_node
from pipeline.cluster.prepare_task import unpack
from pipeline.codec import masked_errors, redact
from pipeline.errors import EngineDiedError
from pipeline.plan.job import Job
from pipeline.storage.protocol import Storage
from pipeline.types import Unit
from pipeline.worker.engine_thread import DroppedError, EngineThread
from pipeline.worker.forks import Forks
from pipeline.worker.lengths import Sums
from pipeline.worker.load_engine import EngineLoader, keep_what_is_there, load_for_any_row
from pipeline.worker.notice import SIGTERM, Notice
from pipeline.worker.row_traces import trace_rows
from pipeline.worker.unit_worker import UnitWorker

POOL = "default"
"""The name of a pool without a name."""

ENGINE_DIED = 70
"""Exit status of an actor whose engine failed: its device state cannot be trusted, so a new process takes over."""
_TERMINATED = 143
_LATE_SECONDS = 10.0
"""After its time is over a process that got SIGTERM waits so long for the driver to end it, then ends by itself."""
_SWITCH_SECONDS = 2e-4
"""Python's thread switch interval in the actor. The engine's thread needs the interpreter lock many times per step;
with Python's default of 5 ms it would wait that long each time while another thread encodes a unit."""


class Answer(NamedTuple):
    """The result of a unit.

    Attributes:
        record: the commit record of the staged unit, as JSON.
        lengths: of rows that finished since the actor's last answer.
        load: see :meth:`GenerateActor.engine_load`; with each unit, as a short job ends before it is asked for.
    """

    record: str
    lengths: Sums
    load: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A sign of an actor: a process of it has begun, or has to go.

    ``taken``: seconds of each stage of its start; ``notice``: why it has to go, None if it does not.
    """

    process: str
    node: str
    taken: Mapping[str, float]
    notice: str | None


class GenerateActor:
    """The class of the pool's Ray actors; :meth:`run` is called from several threads at once.

    ``shared`` is the pickled pair (reference to the job, crash bisection). ``name`` stays the same when its process
    dies and Ray starts another. ``asked``: seconds since 1970.

    Raises:
        EngineDiedError: this actor's processes died more often in a row than allowed, without finishing a unit.
    """

    def __init__(
        self, shared: bytes, pool: str, name: str, asked: float, num_threads: int, load: EngineLoader
    ) -> None:  # fmt: skip
        import ray

        scheduled = max(0.0, time.time() - asked)
        bisection: RemoteBisection
        reference, bisection = ray.cloudpickle.loads(shared)
        job = _job_of(ray.get(reference), pool)
        load = partial(load_for_any_row, load, pool) if pool else load
        self._taken = {"scheduled": scheduled, "process started": stages.seconds_since_start()}
        self._process = uuid.uuid4().hex
        self._notice = Notice.of_environment()
        self._notice.listen()
        threading.Thread(target=self._end_late, args=(job.config.drain_seconds,), name="end", daemon=True).start()
        verdict = bisection.start_process(name, self._process, own_node())
        if not verdict.go_on:
            raise EngineDiedError(f"{verdict.deaths} processes in a row died before any unit was done.")
        stages.on_begin(partial(bisection.reach, name))
        with masked_errors():  # Ray writes them to its logs
            try:
                engine = load(job, num_threads)
            except Exception as error:
                _leave_note(job.storage, error)
                raise
        sys.setswitchinterval(_SWITCH_SECONDS)
        keep_what_is_there()
        slots = job.config.engine.max_num_seqs
        thread = EngineThread(engine, on_fatal=lambda error: _die(job.storage, error), slots=slots)
        self._bisection, self._engine, self._job = bisection, thread, job
        worker = UnitWorker(job, thread, bisection, self._process, _forks(job, load))
        self._workers = [worker, *map(worker.beside, job.later)]
        self._metrics = report_actor(job.config, thread, pool or POOL, restarted=verdict.deaths > 0)

    def watch(self, known: str) -> Sign:
        """Returns at once in a process other than ``known``; else when this one has to go."""
        notice = self._notice.wait() if known == self._process else None
        taken = {**self._taken, **stages.taken()}
        return Sign(process=self._process, node=own_node(), taken=taken, notice=notice)

    def engine_load(self) -> dict[str, Any] | None:
        """How full the engine is, and its counters; None if it reports none. Costs some microseconds."""
        return engine_load(self._engine.snapshot(), self._process)

    def run(self, label: str, execution: int, block: pa.Table) -> Answer | None:
        """Run a unit, given as JSON, from its envelope; None if it was declined or dropped.

        A speculative backup (``execution`` 1) of a unit that may have killed a process is declined.
        """
        unit = Unit.from_json(label)
        if execution and self._bisection.is_suspect(unit.unit_id):
            return None
        try:
            with masked_errors():
                record = self._workers[unit.stage].run(unit, unpack(block), execution)
                return Answer(record.to_json(), self._engine.lengths.take_news(), self.engine_load())
        except DroppedError:
            return None

    def trace(self, rows: pa.Table) -> str:
        """Decode output rows once more, step by step, once no unit is left: a :class:`Traced` as JSON."""
        job = self._job
        done = self._engine.when_idle(lambda engine: trace_rows(job, engine, rows, job.config.report_traces))
        with masked_errors():
            return done.result().to_json()

    def drop(self, unit_id: str, execution: int) -> None:
        """See :meth:`UnitWorker.drop`."""
        self._workers[0].drop(unit_id, execution)

    def _end_late(self, budget: float) -> None:
        """End this process after SIGTERM, should the driver fail to: whoever sent it wants it to end."""
        if self._notice.wait() == SIGTERM:  # else the machine is to go, and takes this process with it
            time.sleep(budget + _LATE_SECONDS)
            os._exit(_TERMINATED)


def _job_of(job: Job, pool: str) -> Job:
    """The job, and those after it in a chain, as actors of a pool see them."""
    own, *later = (replace(one, config=one.config.runs_of_pools()[pool]) for one in (job, *job.later))
    return replace(own, later=tuple(later))


def _forks(job: Job, load: EngineLoader) -> Forks:
    """The children of an actor; each error of an engine in them is noted once."""
    import ray

    noted: set[str] = set()

    def note(error: str) -> None:
        if error not in noted:
            noted.add(error)
            _write_note(job.storage, error)

    return Forks(lambda: bytes(ray.cloudpickle.dumps((job, load))), note)


def _leave_note(storage: Storage, error: BaseException) -> None:
    """Write a crash note to the output, for the driver: Ray does not forward its workers' tracebacks."""
    note = redact("".join(traceback.format_exception(error)))
    print(f"generate actor: ending this process\n{note}", file=sys.stderr, flush=True)
    _write_note(storage, note)


def _write_note(storage: Storage, note: str) -> None:
    with storage.create(layout.crash_note(time.time(), os.getpid())) as file:
        file.write(note.encode())


def _die(storage: Storage, error: BaseException) -> None:
    """Write a crash note and end the process at once; Ray runs the units in flight again in a new process."""
    try:
        _leave_note(storage, error)
    finally:
        os._exit(ENGINE_DIED)
