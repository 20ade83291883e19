"""Body of a prefetch task: reads units, prepares their prompts, packs envelopes; isolates a row that kills the task."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cluster.node_watch import own_node
from pipeline.codec import Failure, SamplingParams, masked_errors
from pipeline.errors import EngineDiedError
from pipeline.plan.job import Job
from pipeline.plan.units import read_units
from pipeline.prompts.row_faults import row_params
from pipeline.prompts.tokenize import PARAMS, PROMPT_IDS, failed_table, prepare_rows, prepare_table
from pipeline.types import Unit
from pipeline.worker.crash_bisection import QUARANTINED, CrashBisection
from pipeline.worker.lengths import OPENING, Kind, kind_of, longest_kinds
from pipeline.worker.row_isolation import RowIsolation

_MAX_ENTRIES = 48


def prefix_histogram(prompts: Iterable[Sequence[int]], page: int) -> Mapping[int, int]:
    """Hash of a prefix -> prompt tokens that a cache with this prefix saves; the 48 largest entries.

    Prefixes of 1, 2, 4, ... pages are counted. An entry counts the tokens beyond the next shorter prefix, once for each
    prompt that has the prefix.
    """
    tokens: Counter[int] = Counter()
    for ids in prompts:
        shorter, length = 0, page
        while length < len(ids):  # the last token is never taken from the cache
            data = np.asarray(ids[:length], dtype=np.int32).tobytes()
            key = int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")
            tokens[key] += length - shorter
            shorter, length = length, 2 * length
    return dict(tokens.most_common(_MAX_ENTRIES))


def prepare_units(units: Sequence[Unit], job: Job, bisection: CrashBisection) -> Iterator[pa.Table]:
    """Two blocks for each unit, in order: hints for the dispatcher, and its envelope.

    Raises:
        EngineDiedError: more processes than allowed died in a row while they prepared these units.
    """
    job = job.of_stage(units[0].stage)
    process, task = uuid.uuid4().hex, f"read.{units[0].unit_id}"
    verdict = bisection.start_process(task, process, own_node())
    if not verdict.go_on:
        raise EngineDiedError(
            f"{verdict.deaths} processes in a row died while they read {_place(units[0], job)} and the rows after it"
        )
    # Isolation runs row by row, which is slow; it is only used after a process has died on these units.
    isolation = RowIsolation(bisection, process, alone=True) if verdict.deaths else None
    prepare = None if isolation is None else functools.partial(_prepare_isolated, isolation)
    with masked_errors():  # Ray writes them to its logs
        for unit, table in zip(units, read_units(job.source, units), strict=True):
            prepared = prepare_table(table, unit, job, prepare)
            yield _hints_block(prepared, job)
            yield pack(prepared)
    if isolation is not None:
        # Only now: a process that takes the place of this one prepares all of the units again.
        for unit in units:
            isolation.finish(_run_key(unit))
    bisection.end_process(task)


def _prepare_isolated(
    isolation: RowIsolation, rows: pa.Table, numbers: Sequence[int], unit: Unit, job: Job
) -> pa.Table:
    """:func:`prepare_rows` with row isolation: rows that kill the process become failed rows."""

    def prepare(some: Sequence[int]) -> list[pa.Table]:
        own = [numbers[i] for i in some]
        done = prepare_rows(rows.take(pa.array(some, pa.int64())), own, unit, job)
        return [done.take([i]) for i in range(len(own))]  # not slices: those are pickled with all rows

    def quarantine(row: int, deaths: int) -> pa.Table:
        return failed_table(rows.slice(row, 1), [numbers[row]], unit, job, _quarantined(deaths))

    if not rows.num_rows:
        return prepare_rows(rows, [], unit, job)
    prepared = isolation.run(_run_key(unit), rows.num_rows, prepare, quarantine)
    return pa.concat_tables(prepared).combine_chunks()


def _run_key(unit: Unit) -> str:
    """Name of a unit's preparation in the crash bisection."""
    return f"read.{unit.unit_id}"


def _quarantined(deaths: int) -> Failure:
    return Failure(
        error_class=QUARANTINED,
        message=f"the process died {deaths} times while the prompt of this row alone was being rendered and tokenised, "
        "and the row was then left out. Correct the row, and run with retry_failed.",
    )


def _place(unit: Unit, job: Job) -> str:
    return f"{job.source.files[unit.rows.file].path} at row {unit.rows.first_row}"


def _hints_block(prepared: pa.Table, job: Job) -> pa.Table:
    """A block for :func:`read_hints`. The histogram is empty with one actor, as the dispatcher then has no choice."""
    config = job.config
    histogram: Mapping[int, int] = {}
    if config.most_actors > 1 and config.engine.prefix_caching:
        prompts = (ids for ids in prepared[PROMPT_IDS].to_pylist() if ids)
        histogram = prefix_histogram(prompts, config.engine.page_size)
    kinds = [(*kind.names, kind.least, kind.most) for kind in longest_kinds(_kinds(prepared, job), _MAX_ENTRIES)]
    integers = pa.list_(pa.int64())
    return pa.table({
        "prefixes": pa.array([list(histogram.items())], pa.list_(integers)),
        "kinds": pa.array([kinds], pa.list_(integers)),
    })  # fmt: skip


def _kinds(prepared: pa.Table, job: Job) -> Iterator[Kind]:
    """The kind of each row that is generated."""
    params_of = functools.lru_cache(maxsize=256)(functools.partial(row_params, job.config))
    prompts = prepared[PROMPT_IDS]
    openings, lengths = pc.list_slice(prompts, 0, OPENING), pc.list_value_length(prompts)
    for opening, length, given in zip(*(c.to_pylist() for c in (openings, lengths, prepared[PARAMS])), strict=True):
        if length and isinstance(params := params_of(given), SamplingParams):
            yield kind_of(opening, length, params)


def read_hints(block: pa.Table) -> tuple[dict[int, int], list[Kind]]:
    """A unit's prefix histogram (prefix -> tokens), and the kinds of its rows, from its block."""
    kinds = block["kinds"][0].as_py()
    return dict(block["prefixes"][0].as_py()), [Kind(tuple(names), least, most) for *names, least, most in kinds]


def seal(table: pa.Table) -> pa.Buffer:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def open_table(data: pa.Buffer | bytes) -> pa.Table:
    """Inverse of :func:`seal`; zero-copy."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def pack(table: pa.Table) -> pa.Table:
    """A block of one row that holds ``table``."""
    payload = pa.Array.from_buffers(pa.large_binary(), 1, _binary_buffers(seal(table)))
    return pa.table({"payload": payload})


def _binary_buffers(data: pa.Buffer) -> list[pa.Buffer | None]:
    offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
    return [None, offsets, data]


def unpack(block: pa.Table) -> pa.Table:
    """Inverse of :func:`pack`."""
    if block.num_rows != 1:
        raise AssertionError(f"an envelope holds one unit, got a block of {block.num_rows} rows")
    return open_table(block["payload"][0].as_buffer())
