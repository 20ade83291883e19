"""Runs units on an engine: from prepared rows to staged results, several units at once. Knows no Ray."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline import codec, layout
from pipeline.codec import Failure, Request, RowResult
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import kept_rows, load_place, merge_letters, merge_retried
from pipeline.prompts.row_faults import prompt_counts, row_params
from pipeline.prompts.tokenize import (
    ASKED,
    CONTINUATIONS,
    FAILURE,
    FAILURE_CLASS,
    INPUT_SHA256,
    LABELS,
    PARAMS,
    PROMPT_IDS,
    REDONE,
    ROW_DIGESTS,
    ROW_ID,
    TURNS,
)
from pipeline.sinks.staged import Staged, digest_of_rows, stage
from pipeline.sources.corrected_rows import CorrectedRows
from pipeline.types import CommitRecord, Place, Unit
from pipeline.worker.crash_bisection import QUARANTINED, CrashBisection
from pipeline.worker.engine_thread import DroppedError, EngineLike, EngineThread, Outcome
from pipeline.worker.forks import Forks
from pipeline.worker.output_tables import encode_unit, record_of
from pipeline.worker.row_isolation import RowIsolation

if TYPE_CHECKING:
    from collections.abc import Iterator


class Runs:
    """The executions ("runs") of units in an actor. Thread-safe.

    Args:
        stop: cancels the work of a future; the future then raises :class:`DroppedError`.
    """

    def __init__(self, stop: Callable[[Future[Any]], None]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._dropped: set[str] = set()
        self._futures: dict[str, Future[Any]] = {}

    @contextmanager
    def run(self, key: str) -> Iterator[None]:
        """Register the run ``key`` for the block; raises DroppedError if it was dropped before."""
        try:
            self._check(key)
            yield
        finally:
            with self._lock:
                self._dropped.discard(key)
                self._futures.pop(key, None)

    def wait(self, key: str, submit: Callable[[], Future[Any]]) -> Any:
        """Submit a part of the run and wait for its result; raises DroppedError if it is dropped."""
        with self._lock:
            self._check(key)
            future = self._futures[key] = submit()
        return future.result()

    def drop(self, key: str) -> None:
        """Cancel a run, or keep it from beginning."""
        with self._lock:
            self._dropped.add(key)
            future = self._futures.get(key)
        if future is not None:
            self._stop(future)

    def _check(self, key: str) -> None:
        if key in self._dropped:
            raise DroppedError


class UnitWorker:
    """Generates and stages units with one engine. Thread-safe.

    Without a ``bisection`` it uses one for this process only. ``process`` is the bisection's name for this process.
    ``forks`` runs rows in child processes, where rows have killed processes; None: no children.
    """

    def __init__(
        self, job: Job, engine: EngineThread, bisection: CrashBisection | None = None, process: str | None = None,
        forks: Forks | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._engine, self._forks = engine, forks
        config = job.config
        self._isolation = RowIsolation(
            bisection or CrashBisection(config.max_row_deaths, config.max_engine_deaths), process or uuid.uuid4().hex
        )
        self._calls = itertools.count()
        self._runs = Runs(engine.drop)
        self._ready = time.monotonic()

    def beside(self, job: Job) -> UnitWorker:
        """A worker for another job, on the same engine: their rows share its forwards."""
        other = copy.copy(self)  # with the same engine, isolation and runs, and the same numbers of calls
        other._job = job
        return other

    def run(self, unit: Unit, table: pa.Table, execution: int = 0) -> CommitRecord:
        """Run one unit, from prepared rows to staged results. ``execution``: 1 for a backup on another actor.

        Raises:
            SinkError: the results could not be written.
            DroppedError: :meth:`drop` was called for this execution.
        """
        run = _run_key(unit.unit_id, execution)
        with self._runs.run(run):
            record = replace(self._stage(unit, table, self.verdicts(unit, table, execution)), copy=execution)
        self._isolation.finish(run)
        return record

    def generate(self, unit: Unit, table: pa.Table) -> pa.Table:
        """The output rows of a unit from its prepared rows; nothing is staged."""
        out, _ = encode_unit(self._job, table, self.verdicts(unit, table))
        self._isolation.finish(_run_key(unit.unit_id, 0))
        return out

    def drop(self, unit_id: str, execution: int) -> None:
        """Cancel an execution of a unit: unless it has ended, :meth:`run` raises :class:`DroppedError`."""
        self._runs.drop(_run_key(unit_id, execution))

    def verdicts(self, unit: Unit, table: pa.Table, execution: int = 0) -> list[RowResult]:
        """Generate for the rows of a unit; blocks until the last sample is done. Results in input order."""
        run = _run_key(unit.unit_id, execution)

        def some(rows: Sequence[int]) -> pa.Table:
            return table if len(rows) == table.num_rows else table.take(pa.array(rows))

        def generate(rows: Sequence[int]) -> list[RowResult]:
            return self._generate(run, some(rows), self._engine.submit)

        def in_child(rows: Sequence[int]) -> list[RowResult]:
            assert self._forks is not None
            return self._generate(run, some(rows), self._forks.submit)

        def quarantine(row: int, deaths: int) -> RowResult:
            return RowResult(row_id=table[ROW_ID][row].as_py(), failure=_quarantined(deaths))

        forked = in_child if self._forks is not None and self._forks.usable else None
        return self._isolation.run(run, table.num_rows, generate, quarantine, forked)

    def _generate(
        self, run: str, table: pa.Table, submit: Callable[[list[Request]], Future[Outcome]]
    ) -> list[RowResult]:  # fmt: skip
        rows, requests = self._requests(run, table)
        outcome = self._runs.wait(run, lambda: submit([r for own in requests for r in own]))
        parts = zip(rows, requests, table[LABELS].to_pylist(), strict=True)
        return [_verdict(row, own, labels or (), outcome) for row, own, labels in parts]

    def _requests(self, run: str, table: pa.Table) -> tuple[list[RowResult], list[list[Request]]]:
        """For each row its id and parameters (or failure), and its requests (none for a failed row)."""
        config = self._job.config
        # The same unit may run twice in a process (a retry): the number of the call keeps its request ids unique.
        call = f"{run}.{next(self._calls)}"
        params_of = functools.lru_cache(maxsize=256)(lambda given: row_params(config, given))
        rows: list[RowResult] = []
        requests: list[list[Request]] = []
        names = (ROW_ID, PARAMS, FAILURE_CLASS, FAILURE, CONTINUATIONS, TURNS, ASKED)
        cells = zip(*(table[name].to_pylist() for name in names), _token_ids(table[PROMPT_IDS]), strict=True)
        for i, (row_id, given, failure_class, message, texts, turns, asked, ids) in enumerate(cells):
            own: list[Request] = []
            params = params_of(given) if message is None else None
            if params is None:
                row = RowResult(row_id=row_id, failure=Failure(error_class=failure_class, message=message))
            elif isinstance(params, Failure):
                row = RowResult(row_id=row_id, failure=params)
            else:
                row = RowResult(row_id=row_id, params=params)
                if config.task is None:
                    own = codec.make_requests(f"{call}/{i}", row_id, ids, params, config.seed)
                if turns is not None:
                    own = _conversations(own, turns, asked, config)
                own += codec.scored_requests(f"{call}/{i}", ids, params, texts or ())
            rows.append(row)
            requests.append(own)
        return rows, requests

    def _stage(self, unit: Unit, table: pa.Table, results: Sequence[RowResult]) -> CommitRecord:
        job = self._job
        notes = table.schema.metadata or {}
        redone = notes.get(REDONE, b"").decode()
        out, dead = encode_unit(job, table, results, unit.attempt, job.retry_of(unit))
        if unit.previous is not None and not redone:
            out, dead = _merged(job, unit, unit.previous, out, dead)
        rows = stage(job.storage, functools.partial(layout.staged_rows, unit.unit_id, unit.attempt), out)
        letters = Staged(bytes=0, sha256="")
        if dead.num_rows:
            letters = stage(job.storage, functools.partial(layout.staged_dead, unit.unit_id, unit.attempt), dead)
        return replace(
            record_of(job, unit, out, dead),
            **prompt_counts(table),
            kept_sha256=_kept(job, unit, out, notes),
            staged_bytes=rows.bytes + letters.bytes,
            rows_sha256=rows.sha256,
            dead_sha256=letters.sha256,
            input_sha256=notes.get(INPUT_SHA256, b"").decode(),
            redone=redone,
            rows_again=table.num_rows if unit.attempt > 1 else 0,
            engine_seconds=time.monotonic() - self._ready,
        )


def _merged(job: Job, unit: Unit, previous: Place, out: pa.Table, dead: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The output rows and dead letters of a unit after all failed rows, or the corrected ones, were done again."""
    prefix, before = job.config.column_prefix, load_place(job, previous)
    if not isinstance(job.source, CorrectedRows):
        return merge_retried(before, out, prefix), dead
    own = job.source.units[unit.unit_id]
    merged = merge_retried(before, out, prefix, own.numbers)
    if own.letters is None:
        return merged, dead
    letters = pa.concat_tables(job.dead_rows.reader(job.storage).read(own.letters))
    return merged, merge_letters(letters, out, dead, merged, prefix)


def _kept(job: Job, unit: Unit, out: pa.Table, notes: Mapping[bytes, bytes]) -> str:
    """Checksum of the input rows that succeeded, or empty if all did. Corrected rows alone do not change it."""
    if isinstance(job.source, CorrectedRows):
        return unit.kept_sha256
    prefix = job.config.column_prefix
    kept = kept_rows(out, prefix, job.apart)
    return "" if len(kept) == unit.num_rows else digest_of_rows(notes[ROW_DIGESTS], kept)


def _conversations(
    requests: Sequence[Request], turns: Sequence[Sequence[int]], asked: Sequence[Any], config: RunConfig
) -> list[Request]:
    from pipeline.worker.turn_requests import conversation

    return [conversation(request, turns, asked, config) for request in requests]


def _run_key(unit_id: str, execution: int) -> str:
    """Name of an execution of a unit, in this process and in the crash bisection."""
    return f"{unit_id}.backup{execution}" if execution else unit_id


def _token_ids(column: pa.ChunkedArray) -> Iterator[Sequence[int]]:
    """The lists of a column; empty where it is null."""
    for chunk in column.chunks:
        values = chunk.values.to_numpy()
        offsets = chunk.offsets.to_numpy().tolist()
        yield from (values[a:b].tolist() for a, b in itertools.pairwise(offsets))


def _quarantined(deaths: int) -> Failure:
    return Failure(
        error_class=QUARANTINED,
        message=f"the process died {deaths} times while this row was running alone in it, and the row was then left "
        "out. Look at the crash notes in the output's state folder, fix the row, and run with retry_failed.",
    )


def _verdict(row: RowResult, requests: Sequence[Request], labels: Sequence[str], outcome: Outcome) -> RowResult:
    """A row succeeds if all its requests do; otherwise it fails as a whole, with the first failed one's reason.

    ``requests``: its samples, then one for each text to score (``labels``).
    """
    if row.failure is not None:
        return row
    generations = []
    for request in requests:
        result = outcome[request.request_id]
        if isinstance(result, Failure):
            return RowResult(row_id=row.row_id, params=row.params, failure=result)
        if result.finish_reason == codec.FinishReason.ERROR:
            failure = Failure(error_class="GenerationError", message=result.error or "the engine gave no reason")
            return RowResult(row_id=row.row_id, params=row.params, failure=failure)
        generations.append(result)
    samples, scored = generations[: len(requests) - len(labels)], generations[len(requests) - len(labels) :]
    choices = codec.scored_choices(labels, scored)
    if not samples:
        best = choices.index(codec.best_choice(choices))
        samples = [replace(scored[best], text=labels[best])]
    return RowResult(row_id=row.row_id, params=row.params, generations=tuple(samples), choices=choices)


def preview_table(job: Job, engine: EngineLike, unit: Unit, table: pa.Table) -> pa.Table:
    """The output rows of a unit, generated in this process; writes nothing."""
    thread = EngineThread(engine)
    try:
        return UnitWorker(job, thread).generate(unit, table)
    finally:
        thread.close()
