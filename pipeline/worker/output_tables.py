"""Turns the results of a unit's rows into the tables to stage and the record for the ledger. No side effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import codec
from pipeline.causes import added_causes, cause_of, example_of
from pipeline.codec import DRAFT_COUNTS, RowResult
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import retried_rows
from pipeline.prompts.structures import special_token, split_reasoning, with_tag
from pipeline.prompts.tokenize import OFFERED, PROMPT_IDS, RAW_TEXT
from pipeline.schema import data_columns
from pipeline.settings.parsing import Parse
from pipeline.settings.reasoning import REASONING, Tags
from pipeline.settings.tool_calls import TOOL_CALLS, calls_column, calls_faults
from pipeline.sinks.staged import data_checksum
from pipeline.types import CommitRecord, Unit

_CAUSES = 8
"""Causes of failures that a unit's record tells apart; the dead-letter table has every message."""


def encode_unit(
    job: Job, table: pa.Table, results: Sequence[RowResult], attempt: int = 1, retry: int | None = None
) -> tuple[pa.Table, pa.Table]:
    """``(output rows, dead letters)`` of prepared rows and their results, in input order, then sample order."""
    prefix, model = job.config.column_prefix, job.config.model_name
    inputs = table.select(job.columns.names)
    counts = [max(1, len(row.generations)) for row in results]
    whole = inputs
    if max(counts, default=1) > 1:
        whole = inputs.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    fields = [field for field in job.result_fields if job.config.reasoning is None or field.name != prefix + REASONING]
    arrays = codec.output_arrays(results, fields, prefix, model, retry)
    if job.config.reasoning is not None:
        place = next(i for i, field in enumerate(fields) if field.name == f"{prefix}text")
        arrays[place : place + 1] = _apart(job, job.config.reasoning, table, results)
    results_table = pa.table(arrays, schema=pa.schema(job.result_fields))
    if job.config.tool_choice is not None:
        offered = [names for names, count in zip(table[OFFERED].to_pylist(), counts, strict=True) for _ in range(count)]
        keys = (results_table[f"{prefix}{name}"].to_pylist() for name in ("row_id", "sample_index"))
        texts = results_table[f"{prefix}text"].to_pylist()
        arrays.append(calls_column(texts, offered, list(zip(*keys, strict=True))))
    arrays += [parse.values(*_ended(job, results_table, parse)) for parse in job.config.parsed.values()]
    out = pa.table([*whole.columns, *arrays], schema=job.schema)
    failed = [i for i, row in enumerate(results) if row.failure is not None]
    if not failed:
        return out, job.dead_schema.empty_table()
    where = pa.array(failed, pa.int64())
    fields = [job.dead_schema.field(i) for i in range(len(job.columns), len(job.dead_schema))]
    raw = table[RAW_TEXT].take(where).to_pylist()
    letters = codec.dead_arrays([results[i] for i in failed], raw, fields, prefix, attempt)
    return out, pa.table([*inputs.take(where).columns, *letters], schema=job.dead_schema)


def _apart(job: Job, tags: Tags, table: pa.Table, results: Sequence[RowResult]) -> list[pa.Array]:
    """The answers and the reasoning of all generations; null for failed rows."""
    pairs: list[tuple[str | None, str | None]] = []
    for number, row in enumerate(results):
        pairs += [] if row.generations else [(None, None)]
        for own in row.generations:
            pairs.append(split_reasoning(job.config, tags, own, table[PROMPT_IDS][number].as_py))
    return [pa.array([answer for _, answer in pairs], pa.string()), pa.array([own for own, _ in pairs], pa.string())]


def _ended(job: Job, table: pa.Table, parse: Parse) -> tuple[pa.ChunkedArray, list[str]]:
    """The texts that a column is read out of, and how each ended."""
    prefix = job.config.column_prefix
    texts, reasons = table[f"{prefix}text"], table[f"{prefix}finish_reason"].to_pylist()
    has_ids = f"{prefix}token_ids" in table.column_names
    if has_ids and parse.after is not None and (tag := special_token(job.config, parse.after)) is not None:
        texts = with_tag(job.config, parse.after, tag, texts, table[f"{prefix}token_ids"])
    return texts, reasons


def _unanswered(job: Job, out: pa.Table) -> dict[str, int]:
    """How many generations are reasoning alone, such as one that was cut at ``max_tokens``."""
    if job.config.reasoning is None:
        return {}
    prefix = job.config.column_prefix
    name = prefix + REASONING
    alone = pc.and_(pc.is_valid(out[name]), pc.equal(out[f"{prefix}text"], ""))
    count = pc.sum(alone).as_py() or 0
    return {f"{name}:alone": count} if count else {}


def _uncalled(job: Job, out: pa.Table) -> dict[str, int]:
    """How many generations have something that looks like a call of a tool and is none, by reason."""
    if job.config.tool_choice is None:
        return {}
    name = job.config.column_prefix + TOOL_CALLS
    names = (f"{job.config.column_prefix}text", name, f"{job.config.column_prefix}finish_reason")
    counts = calls_faults(*(out[own].to_pylist() for own in names))
    return {f"{name}:{reason}": count for reason, count in sorted(counts.items())}


def _unparsed(job: Job, out: pa.Table) -> dict[str, int]:
    """How many generations have no value in a column of JSON, or not all of it, by column and reason."""
    return (
        _unanswered(job, out)
        | _uncalled(job, out)
        | {
            f"{job.config.column_prefix}{name}:{reason}": count
            for name, parse in job.config.parsed.items()
            if parse.json is not None
            for reason, count in sorted(parse.faults(*_ended(job, out, parse)).items())
        }
    )


def record_of(job: Job, unit: Unit, out: pa.Table, dead: pa.Table) -> CommitRecord:
    """The ledger record of a unit, from its output rows and dead letters; the caller adds sizes and digests."""
    prefix = job.config.column_prefix

    def total(name: str, inside: str | None = None) -> int:
        column = out[prefix + name]
        return pc.sum(column if inside is None else pc.struct_field(column, inside)).as_py() or 0

    first, *more = unit.stretches(job.source.files)
    rows = unit.num_rows
    if unit.place is not None:  # which rows of the stage before are read is known when they are
        rows = int(np.count_nonzero(out[f"{prefix}sample_index"].to_numpy() == 0))
    names = ("error_class", "error", "row_id")
    classes, messages, ids = (dead[f"{prefix}{name}"].to_pylist() for name in names)
    causes, examples = _causes(messages, ids)
    drafts: dict[str, Any] = {name: total("stats", name) for name in DRAFT_COUNTS}
    return CommitRecord(
        unit_id=unit.unit_id,
        file_key=first.file_key,
        first_row=first.first_row,
        num_rows=rows,
        more=tuple(more),
        failed_rows=dead.num_rows,
        samples=out.num_rows - dead.num_rows,
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        decode_forwards=total("stats", "decode_forwards"),
        rows_forwarded=total("stats", "rows_forwarded"),
        **drafts,
        staged_bytes=0,
        data_sha256=data_checksum(out, data_columns(out.schema, len(job.columns), prefix)),
        attempt=unit.attempt,
        made_of="" if unit.place is None else unit.place.data_sha256 or "",
        failures=dict(Counter(classes)),
        causes=causes,
        examples=examples,
        unparsed=_unparsed(job, out),
        retried=retried_rows(out, prefix),
    )


def _causes(messages: Sequence[str], ids: Sequence[str]) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """``causes`` and ``examples`` of a record: few causes are told apart, each with its first row."""
    causes = [cause_of(message) for message in messages]
    counts: Mapping[str, int] = {}
    for cause in causes:
        counts = added_causes(counts, {cause: 1}, most=_CAUSES)
    rows = reversed(list(zip(causes, messages, ids, strict=True)))
    return counts, {cause: example_of(row_id, message) for cause, message, row_id in rows if cause in counts}
