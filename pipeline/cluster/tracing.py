"""Has rows decoded once more, for the report, by an actor that nothing is left for; meanwhile the run publishes."""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from pipeline.cluster.actor_pool import ActorPool
from pipeline.codec import redact
from pipeline.commit.part_files import staged_place
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import load_place
from pipeline.types import CommitRecord
from pipeline.worker.row_traces import SPARE, Traced, rows_that_succeeded

_LOG = logging.getLogger(__name__)
_SECONDS = 20.0
"""For the whole call; decoding has a limit of its own."""
_END_SECONDS = 5.0
_REASON_CHARACTERS = 200


class FirstRows:
    """Places of the rows that may be traced: those of the first units that are done."""

    def __init__(self, job: Job, *, wanted: bool) -> None:
        self._job = job
        self._most = job.config.report_traces + SPARE if wanted else 0
        self._units: list[CommitRecord] = []

    def add(self, record: CommitRecord) -> None:
        """A unit has been staged."""
        if record.samples and len(self._units) < self._most:
            self._units.append(record)

    def read(self) -> pa.Table | None:
        """These rows, read from where they are staged; None if there are none."""
        job = self._job
        places = (staged_place(record, derived_ids=job.rows.derived_ids) for record in self._units)
        return rows_that_succeeded((load_place(job, place) for place in places), self._most, job.config.column_prefix)


class Tracing:
    """One call of :meth:`pipeline.cluster.generate_actor.GenerateActor.trace`, in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pool: ActorPool | None = None
        self._found: Traced | None = None

    def begin(self, pool: ActorPool, rows: pa.Table) -> bool:
        """Let an actor trace rows. True: the pool is ended here, once that is done; False: it has no actor for it."""
        members = pool.metrics.members
        ready = () if members is None else members.ready_actors
        if not ready:
            return False
        pool.state.close()
        for actor in list(pool.actors):
            if actor != ready[0]:
                pool.end(actor)
        self._pool = pool
        self._thread = threading.Thread(target=self._run, args=(pool, ready[0], rows), name="tracing", daemon=True)
        self._thread.start()
        return True

    def result(self) -> Traced | None:
        """Its result, once it is done; None if nothing was begun."""
        if self._thread is not None:
            self._thread.join(_SECONDS + _END_SECONDS)
        return self._found

    def close(self) -> None:
        """End it, done or not."""
        if self._thread is not None and self._pool is not None and self._thread.is_alive():
            self._pool.close()
            self._thread.join(_END_SECONDS)

    def _run(self, pool: ActorPool, actor: int, rows: pa.Table) -> None:
        """Keep the answer, or why there is none: whatever goes wrong, the run is done."""
        import ray

        try:
            self._found = Traced.from_json(ray.get(pool.trace(actor, rows), timeout=_SECONDS))
        except Exception as error:
            _LOG.debug("rows were not traced", exc_info=True)
            reason = " ".join(redact(str(error)).split())[:_REASON_CHARACTERS]
            self._found = Traced(reasons=(f"{type(error).__name__}: {reason}",))
        finally:
            pool.close()
