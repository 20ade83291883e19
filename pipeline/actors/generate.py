"""The generate actor: one model, one engine, one KV pool; several units at once; results staged at once."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import codec, envelope, layout
from pipeline.actors.engine_thread import DroppedError, EngineLike, EngineThread, Outcome
from pipeline.actors.runs import Runs
from pipeline.actors.tokenise import FAILURE, FAILURE_CLASS, PARAMS, PROMPT_IDS, RAW_TEXT, ROW_ID
from pipeline.actors.watch import RowWatch, TallyLike
from pipeline.codec import Failure, Request, RowResult, SamplingParams
from pipeline.errors import EngineDiedError
from pipeline.job import Job
from pipeline.retrying import load_place, merge_retried
from pipeline.schema import data_columns
from pipeline.sinks.staging import data_checksum, stage
from pipeline.storage import Storage
from pipeline.tally import Tally
from pipeline.types import CommitRecord, Unit

if TYPE_CHECKING:
    from wedlm_core.llm import LLM

__all__ = [
    "ENGINE_DIED",
    "EngineLoader",
    "GenerateActor",
    "UnitWorker",
    "encode_unit",
    "load_engine",
    "preview_table",
]

EngineLoader = Callable[[Job, "int | None"], EngineLike]
"""Makes an engine for a job with so many torch threads, in the process that will use it."""
ENGINE_DIED = 70
"""Exit status of an actor whose engine failed: its device state cannot be trusted, a fresh process can."""


class UnitWorker:
    """Generates and stages units with an engine; safe to call from several threads. Knows no Ray.

    Args:
        job: what to do.
        engine: owned by its thread.
        tally: what is known of processes that died; None keeps a tally of this process alone.
    """

    def __init__(self, job: Job, engine: EngineThread, tally: TallyLike | None = None) -> None:
        self._job = job
        self._engine = engine
        config = job.config
        self._watch = RowWatch(tally or Tally(config.max_row_deaths, config.max_engine_deaths), uuid.uuid4().hex)
        self._calls = itertools.count()
        self._runs = Runs(engine.drop)
        self._ready = time.monotonic()

    def run(self, unit: Unit, table: pa.Table, copy: int = 0) -> CommitRecord:
        """Do one unit, from prepared rows to staged results.

        Args:
            unit: which.
            table: its prepared rows.
            copy: keeps the results of several actors that do the same unit apart.

        Raises:
            SinkError: the results could not be written.
            DroppedError: :meth:`drop` was called.
        """
        run = _run_key(unit.unit_id, copy)
        with self._runs.run(run):
            record = self._stage(unit, table, self.verdicts(unit, table, copy), copy)
        self._watch.finish(run)
        return record

    def drop(self, unit_id: str, copy: int) -> None:
        """The run of a unit is not wanted any more; it ends with :class:`DroppedError` unless it has ended."""
        self._runs.drop(_run_key(unit_id, copy))

    def verdicts(self, unit: Unit, table: pa.Table, copy: int = 0) -> list[RowResult]:
        """Generate for the rows of a unit; blocks until the last sample is done. In input order."""
        run = _run_key(unit.unit_id, copy)

        def generate(rows: Sequence[int]) -> list[RowResult]:
            return self._generate(run, table if len(rows) == table.num_rows else table.take(pa.array(rows)))

        def quarantine(row: int, deaths: int) -> RowResult:
            return RowResult(row_id=table[ROW_ID][row].as_py(), failure=_quarantined(deaths))

        return self._watch.run(run, table.num_rows, generate, quarantine)

    def _generate(self, run: str, table: pa.Table) -> list[RowResult]:
        rows, requests = self._requests(run, table)
        outcome = self._runs.wait(run, lambda: self._engine.submit([r for own in requests for r in own]))
        return [_verdict(row, own, outcome) for row, own in zip(rows, requests, strict=True)]

    def _requests(self, run: str, table: pa.Table) -> tuple[list[RowResult], list[list[Request]]]:
        """Per row: its id and parameters (or failure), and its requests (none for a failed row)."""
        config = self._job.config
        # A unit may come twice (a retry); request ids stay apart by the number of the call.
        call = f"{run}.{next(self._calls)}"
        params_of = functools.lru_cache(maxsize=256)(lambda given: _params(config.sampling, given))
        rows: list[RowResult] = []
        requests: list[list[Request]] = []
        names = (ROW_ID, PARAMS, FAILURE_CLASS, FAILURE)
        cells = zip(*(table[name].to_pylist() for name in names), _token_ids(table[PROMPT_IDS]), strict=True)
        for i, (row_id, given, failure_class, message, ids) in enumerate(cells):
            own: list[Request] = []
            params = params_of(given) if message is None else None
            if params is None:
                row = RowResult(row_id=row_id, failure=Failure(error_class=failure_class, message=message))
            elif isinstance(params, Failure):
                row = RowResult(row_id=row_id, failure=params)
            else:
                row = RowResult(row_id=row_id, params=params)
                own = codec.make_requests(f"{call}/{i}", row_id, ids, params, config.seed)
            rows.append(row)
            requests.append(own)
        return rows, requests

    def _stage(self, unit: Unit, table: pa.Table, results: Sequence[RowResult], copy: int) -> CommitRecord:
        job = self._job
        out, dead = encode_unit(job, table, results, unit.attempt)
        if unit.previous is not None:
            out = merge_retried(load_place(job, unit.previous), out, job.config.column_prefix)
        size = stage(job.storage, layout.staged_rows(unit.unit_id, unit.attempt, copy), out)
        if dead.num_rows:
            size += stage(job.storage, layout.staged_dead(unit.unit_id, unit.attempt, copy), dead)
        record = _record(job, unit, out, dead)
        return replace(record, copy=copy, staged_bytes=size, engine_seconds=time.monotonic() - self._ready)


def _run_key(unit_id: str, copy: int) -> str:
    """Name of a run of a unit: in this process, and in the tally."""
    return f"{unit_id}.copy{copy}" if copy else unit_id


def _record(job: Job, unit: Unit, out: pa.Table, dead: pa.Table) -> CommitRecord:
    """What the ledger is to say of a unit with these output rows."""
    prefix = job.config.column_prefix

    def total(name: str, inside: str | None = None) -> int:
        column = out[prefix + name]
        values = column if inside is None else pc.struct_field(column, inside)
        return pc.sum(values).as_py() or 0

    reasons = pc.value_counts(dead[f"{prefix}error_class"].combine_chunks()).to_pylist()
    return CommitRecord(
        unit_id=unit.unit_id,
        file_key=job.source.files[unit.rows.file].key,
        first_row=unit.rows.first_row,
        num_rows=unit.rows.num_rows,
        failed_rows=dead.num_rows,
        samples=out.num_rows - dead.num_rows,
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        decode_forwards=total("stats", "decode_forwards"),
        rows_forwarded=total("stats", "rows_forwarded"),
        staged_bytes=0,
        data_sha256=data_checksum(out, data_columns(out.schema, len(job.columns), prefix)),
        attempt=unit.attempt,
        failures={reason["values"]: reason["counts"] for reason in reasons},
    )


def _params(base: SamplingParams, given: str | None) -> SamplingParams | Failure:
    """A row's parameters, or why they are none."""
    try:
        return codec.params_of_row(base, json.loads(given)) if given else base
    except Exception as error:  # this row's parameters are bad; the others are not
        return Failure.of(error)


def _token_ids(column: pa.ChunkedArray) -> Iterator[Sequence[int]]:
    """The lists of a column; empty where it is null."""
    for chunk in column.chunks:
        values = chunk.values.to_numpy()
        offsets = chunk.offsets.to_numpy().tolist()
        yield from (values[a:b].tolist() for a, b in itertools.pairwise(offsets))


def _quarantined(deaths: int) -> Failure:
    return Failure(
        error_class="QuarantinedRow",
        message=f"the process died {deaths} times while this row was running alone in it, and the row was then left "
        "out. Look at the crash notes in the output's state folder, mend the row, and run with retry_failed.",
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


def encode_unit(job: Job, table: pa.Table, results: Sequence[RowResult], attempt: int = 1) -> tuple[pa.Table, pa.Table]:
    """``(output rows, dead letters)`` of prepared rows, in input order and then sample order."""
    prefix, model = job.config.column_prefix, job.config.model
    inputs = table.select(job.columns.names)
    counts = [max(1, len(row.generations)) for row in results]
    whole = inputs
    if max(counts, default=1) > 1:
        whole = inputs.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    arrays = codec.output_arrays(results, job.result_fields, prefix, model)
    out = pa.table([*whole.columns, *arrays], schema=job.schema)
    failed = [i for i, row in enumerate(results) if row.failure is not None]
    if not failed:
        return out, job.dead_schema.empty_table()
    where = pa.array(failed, pa.int64())
    fields = [job.dead_schema.field(i) for i in range(len(job.columns), len(job.dead_schema))]
    raw = table[RAW_TEXT].take(where).to_pylist()
    letters = codec.dead_arrays([results[i] for i in failed], raw, fields, prefix, attempt)
    return out, pa.table([*inputs.take(where).columns, *letters], schema=job.dead_schema)


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
        config=config.actor_engine,
        device=config.device,
        dtype=config.dtype,  # type: ignore[arg-type]
        revision=config.revision,
        storage_options=dict(config.storage_options) or None,
    )
    _warm_up(llm, config.sampling)
    return llm.engine


def _warm_up(llm: LLM, sampling: SamplingParams) -> None:
    """Compile the kernels and measure the step cost before the first unit, so that no row's time pays for it."""
    llm.generate([[0]], SamplingParams(max_tokens=2, ignore_eos=True, strategy="autoregressive"))
    if sampling.adaptive:
        _ = llm.engine.step_cost


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
