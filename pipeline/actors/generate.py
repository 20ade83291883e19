"""The generate actor: one model, one engine, one KV pool; several units at once; results staged at once."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pipeline import codec, envelope, layout
from pipeline.actors.engine_thread import EngineLike, EngineThread, Outcome
from pipeline.actors.tokenise import FAILURE, FAILURE_CLASS, PARAMS, PROMPT_IDS, RAW_TEXT, ROW_ID
from pipeline.codec import Failure, Request, RowResult
from pipeline.job import Job
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staging import data_checksum, stage
from pipeline.storage import Storage
from pipeline.types import CommitRecord, Unit

__all__ = ["ENGINE_DIED", "EngineLoader", "GenerateActor", "UnitWorker", "encode_unit", "load_engine", "preview_table"]

EngineLoader = Callable[[Job, "int | None"], EngineLike]
"""Makes an engine for a job with so many torch threads, in the process that will use it."""
ENGINE_DIED = 70
"""Exit status of an actor whose engine failed: its device state cannot be trusted, a fresh process can."""


class UnitWorker:
    """Generates and stages units with an engine; safe to call from several threads. Knows no Ray."""

    def __init__(self, job: Job, engine: EngineThread) -> None:
        self._job = job
        self._engine = engine
        self._calls = itertools.count()
        self._ready = time.monotonic()

    def run(self, unit: Unit, table: pa.Table) -> CommitRecord:
        """Do one unit, from prepared rows to staged results.

        Raises:
            SinkError: the results could not be written.
        """
        return self._stage(unit, table, self.verdicts(unit, table))

    def verdicts(self, unit: Unit, table: pa.Table) -> list[RowResult]:
        """Generate for the rows of a unit; blocks until the last sample is done. In input order."""
        rows, requests = self._requests(unit, table)
        outcome = self._engine.submit([r for own in requests for r in own]).result()
        return [_verdict(row, own, outcome) for row, own in zip(rows, requests, strict=True)]

    def _requests(self, unit: Unit, table: pa.Table) -> tuple[list[RowResult], list[list[Request]]]:
        """Per row: its id and parameters (or failure), and its requests (none for a failed row)."""
        config = self._job.config
        # A unit may come twice (a retry); request ids stay apart by the number of the call.
        call = f"{unit.unit_id}.{next(self._calls)}"
        rows: list[RowResult] = []
        requests: list[list[Request]] = []
        names = (ROW_ID, PROMPT_IDS, PARAMS, FAILURE_CLASS, FAILURE)
        cells = zip(*(table[name].to_pylist() for name in names), strict=True)
        for i, (row_id, ids, given, failure_class, message) in enumerate(cells):
            own: list[Request] = []
            if message is not None:
                row = RowResult(row_id=row_id, failure=Failure(error_class=failure_class, message=message))
            else:
                try:
                    params = codec.params_of_row(config.sampling, json.loads(given) if given else {})
                    row = RowResult(row_id=row_id, params=params)
                    own = codec.make_requests(f"{call}/{i}", row_id, ids, params, config.seed)
                except Exception as error:  # this row's parameters are bad; the others are not
                    row = RowResult(row_id=row_id, failure=Failure.of(error))
            rows.append(row)
            requests.append(own)
        return rows, requests

    def _stage(self, unit: Unit, table: pa.Table, results: Sequence[RowResult]) -> CommitRecord:
        job = self._job
        out, dead = encode_unit(job, table, results)
        size = stage(job.storage, layout.staged_rows(unit.unit_id), out)
        if dead.num_rows:
            size += stage(job.storage, layout.staged_dead(unit.unit_id), dead)
        prefix = job.config.column_prefix
        data = [prefix + name for name in DATA_COLUMNS if prefix + name in out.column_names]
        done = [g for row in results for g in row.generations]
        return CommitRecord(
            unit_id=unit.unit_id,
            file_key=job.source.files[unit.rows.file].key,
            first_row=unit.rows.first_row,
            num_rows=unit.rows.num_rows,
            failed_rows=sum(row.failure is not None for row in results),
            samples=len(done),
            prompt_tokens=sum(g.prompt_tokens for g in done),
            completion_tokens=sum(len(g.token_ids) for g in done),
            decode_forwards=sum(g.stats.decode_forwards for g in done),
            rows_forwarded=sum(g.stats.rows_forwarded for g in done),
            staged_bytes=size,
            data_sha256=data_checksum(out, [*job.columns.names, *data]),
            engine_seconds=time.monotonic() - self._ready,
        )


def _verdict(row: RowResult, requests: Sequence[Request], outcome: Outcome) -> RowResult:
    """A row is ok when all its samples are; else it failed as a whole, with the first sample's reason."""
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
    return RowResult(row_id=row.row_id, params=row.params, generations=tuple(generations))


def encode_unit(job: Job, table: pa.Table, results: Sequence[RowResult]) -> tuple[pa.Table, pa.Table]:
    """``(output rows, dead letters)`` of a unit, in input order and then sample order."""
    values: list[dict[str, Any]] = []
    origin: list[int] = []
    dead: list[dict[str, Any]] = []
    dead_origin: list[int] = []
    raw = table[RAW_TEXT].to_pylist()
    model = job.config.model
    for i, row in enumerate(results):
        if row.failure is not None:
            values.append(codec.failed_columns(row, model))
            dead.append(
                {
                    "row_id": row.row_id,
                    "error_class": row.failure.error_class,
                    "error": row.failure.message,
                    "attempt": 1,
                    "raw": raw[i],
                }
            )
            dead_origin.append(i)
        else:
            values += [codec.generation_columns(row, generation, model) for generation in row.generations]
        origin += [i] * max(1, len(row.generations))
    return _joined(table, origin, values, job.schema, job), _joined(table, dead_origin, dead, job.dead_schema, job)


def _joined(table: pa.Table, origin: list[int], values: list[dict[str, Any]], schema: pa.Schema, job: Job) -> pa.Table:
    inputs = table.select(job.columns.names).take(pa.array(origin, pa.int64()))
    fields = [schema.field(i) for i in range(len(job.columns), len(schema))]
    arrays = codec.result_arrays(values, fields, job.config.column_prefix)
    return pa.table([*inputs.columns, *arrays], schema=schema)


class GenerateActor:
    """The callable class that Ray Data keeps in its actor pool; called from several threads at once."""

    def __init__(self, job: Job, num_threads: int, load: EngineLoader) -> None:
        """Load the model."""
        try:
            engine = load(job, num_threads)
        except Exception as error:
            _leave_note(job.storage, error)
            raise
        self._worker = UnitWorker(job, EngineThread(engine, on_fatal=lambda error: _die(job.storage, error)))

    def __call__(self, block: pa.Table) -> pa.Table:
        """An envelope in, the commit record of its staged unit out."""
        label, table = envelope.unpack(block)
        record = self._worker.run(Unit.from_json(label), table)
        return pa.table({"record": [record.to_json()]})


def load_engine(job: Job, num_threads: int | None) -> EngineLike:
    """The model's engine, in this process; the only place of the pipeline that imports torch.

    Args:
        job: names the model and how to run it.
        num_threads: torch's threads in this process; None leaves them.
    """
    # Threads that spin while they wait for each other take the CPU from whatever else runs: on a machine with
    # one more busy process, two spinning threads were over 20 times slower than two that sleep. Read at import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from wedlm_core.llm import LLM

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    config = job.config
    llm = LLM(
        config.model,
        config=config.engine,
        device=config.device,
        dtype=config.dtype,  # type: ignore[arg-type]
        revision=config.revision,
        storage_options=dict(config.storage_options) or None,
    )
    return llm.engine


def preview_table(job: Job, engine: EngineLike, unit: Unit, table: pa.Table) -> pa.Table:
    """Output rows of a unit, generated here and written nowhere."""
    thread = EngineThread(engine)
    try:
        return encode_unit(job, table, UnitWorker(job, thread).verdicts(unit, table))[0]
    finally:
        thread.close()


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
