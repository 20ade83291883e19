"""Prepares the rows of a unit: renders and tokenises their prompts. A bad row is marked as failed, never dropped."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from pipeline.codec import Failure, RequestError, explain
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, SourceError
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import REPAIR_FIRST, failed_rows, kept_sha256, load_place
from pipeline.prompts.continuations import Continuations, continuations_of
from pipeline.prompts.model_files import check_same_model, model_length, resolved_model
from pipeline.prompts.prompt import (
    PromptText,
    Turns,
    encode_marked,
    is_marked,
    unmarked,
)
from pipeline.prompts.row_requests import Names, Params, Prompt, row_requests
from pipeline.prompts.structures import grammar_faults
from pipeline.schema import MESSAGES_FIELD
from pipeline.sinks.staged import data_checksum, row_digests
from pipeline.sources import BAD, RAW
from pipeline.sources.corrected_rows import CorrectedRows
from pipeline.storage.damage import FoundDamageError
from pipeline.types import Unit, column_row_ids, derived_row_ids
from wedlm_core.tokenizer import Tokenizer

ROW_ID = "__wedlm_row_id"
PROMPT_IDS = "__wedlm_prompt_ids"
PARAMS = "__wedlm_params"
FAILURE_CLASS = "__wedlm_failure_class"
FAILURE = "__wedlm_failure"
RAW_TEXT = "__wedlm_raw_text"
BLANK = "__wedlm_blank"
LABELS = "__wedlm_labels"
CONTINUATIONS = "__wedlm_continuations"
OFFERED = "__wedlm_offered"
TURNS = "__wedlm_turns"
ASKED = "__wedlm_asked"
INPUT_SHA256 = b"wedlm.input_sha256"
REDONE = b"wedlm.redone"
ROW_DIGESTS = b"wedlm.row_digests"

_PREPARED = (
    pa.field(ROW_ID, pa.string()),
    pa.field(PROMPT_IDS, pa.list_(pa.int32())),
    pa.field(PARAMS, pa.string()),
    pa.field(FAILURE_CLASS, pa.string()),
    pa.field(FAILURE, pa.string()),
    pa.field(RAW_TEXT, pa.string()),
    pa.field(BLANK, pa.bool_()),
    pa.field(LABELS, pa.list_(pa.string())),
    pa.field(CONTINUATIONS, pa.list_(pa.list_(pa.int32()))),
    pa.field(OFFERED, pa.list_(pa.string())),
    pa.field(TURNS, pa.list_(pa.list_(pa.int32()))),
    pa.field(ASKED, MESSAGES_FIELD.type),
)


PrepareRows = Callable[[pa.Table, Sequence[int], Unit, Job], pa.Table]


def prepare_table(table: pa.Table, unit: Unit, job: Job, prepare: PrepareRows | None = None) -> pa.Table:
    """Prepare a unit: its passed-through columns, and for each row its id and its prompt's token ids or failure.

    The table's metadata holds values for the ledger: the checksum of the input rows (:data:`INPUT_SHA256`), the digest
    of each of them (:data:`ROW_DIGESTS`), and why the good rows of the attempt before cannot be kept, if so
    (:data:`REDONE`).

    ``table``: all input rows of the unit; of a retry with corrected rows, these alone. ``prepare`` replaces
    :func:`prepare_rows`.

    Raises:
        SourceError: the attempt before read other rows.
    """
    if isinstance(job.source, CorrectedRows):
        _check_previous(unit, job)
        prepared = (prepare or prepare_rows)(table, job.source.units[unit.unit_id].numbers, unit, job)
        return prepared.replace_schema_metadata({INPUT_SHA256: unit.input_sha256 or "", REDONE: ""})
    digest, digests = data_checksum(table, table.column_names), row_digests(table, job.source.schema.names)
    numbers, redone, kept = _rows_to_do(table, unit, job, digests)
    if unit.input_sha256 not in (None, digest) and not (kept and kept == unit.kept_sha256):
        where = " and ".join(map(str, unit.stretches(job.source.files)))
        raise SourceError(f"{where} changed after an earlier attempt of this run had read them. {job.source.remedy}")
    rows = table if len(numbers) == table.num_rows else table.take(pa.array(numbers, pa.int64()))
    prepared = (prepare or prepare_rows)(rows, numbers, unit, job)
    return prepared.replace_schema_metadata({INPUT_SHA256: digest, ROW_DIGESTS: digests, REDONE: redone})


def _check_previous(unit: Unit, job: Job) -> None:
    """Check that the rows are there that corrected rows join.

    Raises:
        DamagedError: they were revoked, or differ from the committed ones.
    """
    if unit.previous is None:
        raise DamagedError(f"unit {unit.unit_id}: its rows were revoked", REPAIR_FIRST)
    try:
        load_place(job, unit.previous)
    except FoundDamageError as error:
        raise DamagedError(f"{error}", REPAIR_FIRST) from error


def _rows_to_do(table: pa.Table, unit: Unit, job: Job, digests: bytes) -> tuple[Sequence[int], str, str]:
    """Numbers of the rows to generate: all, or for a retry the failed ones.

    If the results of the attempt before are damaged, all rows are generated again. Also returns that damage, and the
    checksum of the rows that succeeded, as the input has them now.

    Raises:
        DamagedError: they are, and this run has other settings than the rows that succeeded.
    """
    if unit.previous is None:
        return range(table.num_rows), "", ""
    prefix = job.config.column_prefix
    try:
        before = load_place(job, unit.previous)
    except FoundDamageError as error:
        if job.retry.settings:
            raise DamagedError(f"{error}", REPAIR_FIRST) from error
        return range(table.num_rows), str(error), ""
    return failed_rows(before, prefix), "", kept_sha256(before, digests, prefix, job.apart)


def prepare_rows(table: pa.Table, rows: Sequence[int], unit: Unit, job: Job) -> pa.Table:
    """Prepare some rows of a unit; ``rows``: their numbers in it. Columns as of :func:`prepare_table`."""
    prompts, given, offered = row_requests(table, job)
    blank = [isinstance(prompt, PromptText) and prompt.blank for prompt in prompts]
    turns = [prompt.turns if isinstance(prompt, PromptText) else None for prompt in prompts]
    scored = _encode_all(prompts, given, table, job)
    later = _later_turns(prompts, turns, _max_tokens(given, scored, job), job.config)
    for i, fault in grammar_faults(given, job.config).items():
        prompts[i] = prompts[i] if isinstance(prompts[i], Failure) else fault
    asked = [None if own is None else own.messages for own in turns]
    return _prepared(table, rows, unit, job, prompts, given, blank, scored, offered, later, asked)


def encoded_prompts(table: pa.Table, job: Job) -> tuple[list[Prompt], list[Params]]:
    """For each row the token ids of its prompt, or its failure; and its own sampling parameters.

    ``table``: the columns that prompts and parameters are made of.
    """
    prompts, given, _ = row_requests(table, job)
    _encode_all(prompts, given, table, job)
    return prompts, given


def _encode_all(
    prompts: list[Prompt], given: Sequence[Params], table: pa.Table, job: Job
) -> list[Continuations | None]:
    """Replace texts by their token ids, and prompts that cannot be generated for by their failures.

    Returns:
        For each row the texts to score after its prompt.
    """
    for i, fault in enumerate(_hidden(table, BAD)):
        if fault is not None:
            prompts[i] = Failure(error_class="SourceError", message=fault)
    check_same_model(job.config, job.model_digest)
    scored = _scored(prompts, given, table, job)
    tokenizer, max_tokens = resolved_model(job.config).tokenizer, _max_tokens(given, scored, job)
    _refuse_long(prompts, max_tokens, job.config, tokenizer)
    plain = [isinstance(prompt, str) and not (isinstance(prompt, PromptText) and prompt.chat) for prompt in prompts]
    _encode_marked(prompts, tokenizer, job.config)
    _encode(prompts, tokenizer)
    for i, ids in enumerate(prompts):
        if plain[i] and isinstance(ids, list):
            prompts[i] = tokenizer.as_prompt(ids)
    _fit(prompts, max_tokens, job.config)
    return scored


def _scored(prompts: list[Prompt], given: Sequence[Params], table: pa.Table, job: Job) -> list[Continuations | None]:
    """For each row the texts to score after its prompt; a row with a bad one is failed."""
    if not job.config.has_scores:
        return [None] * len(prompts)
    scored: list[Continuations | None] = []
    for i, found in enumerate(continuations_of(table, given, job)):
        if isinstance(found, Failure):
            prompts[i] = prompts[i] if isinstance(prompts[i], Failure) else found
        scored.append(None if isinstance(found, Failure) else found)
    return scored


def _later_turns(
    prompts: list[Prompt], turns: Sequence[Turns | None], max_tokens: Sequence[int], config: RunConfig
) -> list[Sequence[Sequence[int]] | None]:
    """For each row the tokens of its turns after the first; a row with a turn that cannot fit is failed."""
    if config.turns_column is None:
        return [None] * len(prompts)
    from pipeline.prompts.turns import encoded_turns

    return encoded_turns(prompts, turns, max_tokens, config)


def failed_table(table: pa.Table, rows: Sequence[int], unit: Unit, job: Job, failure: Failure) -> pa.Table:
    """:func:`prepare_rows` for rows that all failed with the same failure; their prompts are not read."""
    return _prepared(table, rows, unit, job, [failure] * table.num_rows, [None] * table.num_rows)


def _prepared(
    table: pa.Table,
    rows: Sequence[int],
    unit: Unit,
    job: Job,
    prompts: Sequence[Prompt],
    given: Sequence[Params],
    blank: Sequence[bool] | None = None,
    scored: Sequence[Continuations | None] | None = None,
    offered: Sequence[Names] | None = None,
    later: Sequence[Sequence[Sequence[int]] | None] | None = None,
    asked: Sequence[Sequence[Mapping[str, str]] | None] | None = None,
) -> pa.Table:
    scored = scored or [None] * len(prompts)
    failures = [prompt if isinstance(prompt, Failure) else None for prompt in prompts]
    made = (
        _row_ids(table, unit, job, rows),
        [prompt if isinstance(prompt, list) else None for prompt in prompts],
        [None if own is None else json.dumps(own, default=str) for own in given],
        [None if failure is None else failure.error_class for failure in failures],
        [None if failure is None else failure.message for failure in failures],
        _hidden(table, RAW),
        [
            own and isinstance(prompt, list)
            for own, prompt in zip(blank or [False] * len(prompts), prompts, strict=True)
        ],
        [None if own is None else own.labels for own in scored],
        [None if own is None else own.token_ids for own in scored],
        offered or [None] * len(prompts),
        later or [None] * len(prompts),
        asked or [None] * len(prompts),
    )
    prepared = [pa.array(column, f.type) for column, f in zip(made, _PREPARED, strict=True)]
    kept = [table[name] for name in job.columns.names]
    return pa.table([*kept, *prepared], schema=pa.schema([*job.columns, *_PREPARED]))


def _hidden(table: pa.Table, name: str) -> list[str | None]:
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


def _row_ids(table: pa.Table, unit: Unit, job: Job, rows: Sequence[int]) -> list[str]:
    ids = derived_row_ids(unit.stretches(job.source.files))
    derived = [ids[row] for row in rows]
    if job.config.id_column is None:
        return derived
    return column_row_ids(table[job.config.id_column].to_pylist(), derived)


def _max_tokens(given: Sequence[Params], scored: Sequence[Continuations | None], job: Job) -> list[int]:
    """For each row the tokens that follow its prompt at most: its ``max_tokens``, or the longest text to score.

    The run's ``max_tokens`` if its own is invalid, which is reported elsewhere.
    """
    base = 0 if job.config.task is not None else job.config.sampling.max_tokens
    own = [None if params is None else params.get("max_tokens") for params in given]
    most = [int(v) if isinstance(v, (int, float)) and 0 <= v < math.inf else base for v in own]
    return [max(v, 0 if texts is None else texts.places) for v, texts in zip(most, scored, strict=True)]


def _refuse_long(
    prompts: list[Prompt], max_tokens: Sequence[int], config: RunConfig, tokenizer: Tokenizer
) -> None:  # fmt: skip
    """Fail texts that are certain to be too long before time and memory go into encoding them."""
    length = model_length(config)
    for i, prompt in enumerate(prompts):
        room = length - max_tokens[i]
        if not isinstance(prompt, str) or len(prompt) <= room or (config.on_long_prompt != "fail" and room > 0):
            continue
        least = tokenizer.least_tokens(unmarked(prompt), room)
        if least > room:
            prompts[i] = Failure.of(_too_long(f"at least {least}", max_tokens[i], length, config))


def _encode_marked(prompts: list[Prompt], tokenizer: Tokenizer, config: RunConfig) -> None:
    """Replace texts by their token ids where some special tokens are ordinary text."""
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, str) and is_marked(prompt, config):
            prompts[i] = _encoded(prompt, functools.partial(encode_marked, tokenizer=tokenizer))


def _encode(prompts: list[Prompt], tokenizer: Tokenizer) -> None:
    """Replace texts by their token ids."""
    where = [i for i, prompt in enumerate(prompts) if isinstance(prompt, str)]
    texts = [str(prompts[i]) for i in where]
    try:
        encoded: list[Prompt] = [*tokenizer.encode_batch(texts)]
    except Exception:  # one of them cannot be encoded (half a surrogate pair): find out which
        encoded = [_encoded(text, tokenizer.encode) for text in texts]
    for i, found in zip(where, encoded, strict=True):
        prompts[i] = found


def _encoded(text: str, encode: Callable[[str], list[int]]) -> list[int] | Failure:
    try:
        return encode(text)
    except Exception as error:
        return Failure.of(RequestError(f"the prompt cannot be tokenised ({error}). Re-encode it."))


def _fit(prompts: list[Prompt], max_tokens: Sequence[int], config: RunConfig) -> None:
    """Fail or cut prompts that are too long, as ``on_long_prompt`` says."""
    length = model_length(config)
    for i, ids in enumerate(prompts):
        if not isinstance(ids, list):
            continue
        room = length - max_tokens[i]
        if len(ids) <= room:
            continue
        if config.on_long_prompt == "fail" or room < 1:
            prompts[i] = Failure.of(_too_long(len(ids), max_tokens[i], length, config))
        else:
            prompts[i] = ids[-room:] if config.on_long_prompt == "truncate_left" else ids[:room]


def _too_long(prompt: object, max_tokens: int, length: int, config: RunConfig) -> RequestError:
    rest = "max_tokens" if config.task is None else "text to score"
    remedy = f"Shorten the prompt, {'lower' if config.task is None else 'or the'} {rest}, or set on_long_prompt."
    if config.on_long_prompt != "fail":
        remedy = f"No prompt fits with this {rest}. {'Lower' if config.task is None else 'Shorten'} it."
    if config.turns_column is not None:
        remedy = f"Shorten the first turn, or lower {rest}."
    rule = f"at most {length} tokens together, the model's length"
    return RequestError(explain(f"prompt + {rest}", f"{prompt} + {max_tokens}", rule, remedy))
