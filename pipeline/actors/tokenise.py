"""CPU tasks: read units, render and tokenise their prompts. A bad row is marked here, never dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline import envelope
from pipeline.actors.model import load_tokenizer
from pipeline.codec import Failure, RequestError, explain
from pipeline.job import Job
from pipeline.plan import derived_row_id
from pipeline.sources import BAD, RAW
from pipeline.types import Unit
from wedlm_core.tokenizer import Tokenizer

__all__ = ["FAILURE", "FAILURE_CLASS", "PARAMS", "PROMPT_IDS", "RAW_TEXT", "ROW_ID", "prepare_table", "prepare_units"]

ROW_ID = "__wedlm_row_id"
PROMPT_IDS = "__wedlm_prompt_ids"
PARAMS = "__wedlm_params"
FAILURE_CLASS = "__wedlm_failure_class"
FAILURE = "__wedlm_failure"
RAW_TEXT = "__wedlm_raw_text"

_PREPARED = (
    pa.field(ROW_ID, pa.string()),
    pa.field(PROMPT_IDS, pa.list_(pa.int32())),
    pa.field(PARAMS, pa.string()),
    pa.field(FAILURE_CLASS, pa.string()),
    pa.field(FAILURE, pa.string()),
    pa.field(RAW_TEXT, pa.string()),
)


def prepare_units(block: pa.Table, job: Job) -> Iterator[pa.Table]:
    """Task body: each unit listed in ``block`` becomes an envelope with its prepared rows."""
    units = [Unit.from_json(text) for row in block["units"].to_pylist() for text in row]
    tables = job.source.read([unit.rows for unit in units])
    for unit, table in zip(units, tables, strict=True):
        yield envelope.pack(unit.to_json(), prepare_table(table, unit, job))


def prepare_table(table: pa.Table, unit: Unit, job: Job) -> pa.Table:
    """The passed-through columns of a unit, and for each row its id and its prompt's token ids or failure."""
    tokenizer = load_tokenizer(job.config)
    given = _given_params(table, job)
    bad, raw = _hidden(table, BAD), _hidden(table, RAW)
    rows = []
    for i, prompt in enumerate(_values(table[job.prompt_column])):
        fault = bad[i]
        failure = None if fault is None else Failure(error_class="SourceError", message=fault)
        ids: list[int] | None = None
        if failure is None:
            try:
                ids = token_ids_of(prompt, job, tokenizer)
            except Exception as error:  # one row's prompt, whatever is wrong with it, must not end the run
                failure = Failure.of(error)
        rows.append(
            {
                ROW_ID: _row_id(table, i, unit, job),
                PROMPT_IDS: ids,
                PARAMS: given[i],
                FAILURE_CLASS: None if failure is None else failure.error_class,
                FAILURE: None if failure is None else failure.message,
                RAW_TEXT: raw[i],
            }
        )
    prepared = [pa.array([row[f.name] for row in rows], f.type) for f in _PREPARED]
    kept = [table[name] for name in job.columns.names]
    return pa.table([*kept, *prepared], schema=pa.schema([*job.columns, *_PREPARED]))


def _hidden(table: pa.Table, name: str) -> list[str | None]:
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell that has none (text that is not UTF-8) is the exception instead."""
    try:
        return column.to_pylist()
    except (UnicodeDecodeError, pa.ArrowException):
        return [_value(cell) for cell in column]


def _value(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (UnicodeDecodeError, pa.ArrowException) as error:
        return error


def _row_id(table: pa.Table, i: int, unit: Unit, job: Job) -> str:
    if job.config.id_column is not None:
        return str(table[job.config.id_column][i].as_py())
    return derived_row_id(job.source.files[unit.rows.file], unit.rows.first_row + i)


def _given_params(table: pa.Table, job: Job) -> list[str | None]:
    """Per row, its own sampling parameters as JSON."""
    columns = {name: table[column].to_pylist() for name, column in job.config.sampling_columns.items()}
    if not columns:
        return [None] * table.num_rows
    return [
        json.dumps({name: values[i] for name, values in columns.items()}, default=str) for i in range(table.num_rows)
    ]


def token_ids_of(prompt: Any, job: Job, tokenizer: Tokenizer) -> list[int]:
    """Token ids of one cell of the prompt column.

    Raises:
        RequestError: null, empty, or of a wrong type.
    """
    name = job.prompt_column
    if isinstance(prompt, Exception):
        raise RequestError(f"column {name!r}: not valid UTF-8 text ({prompt}). Re-encode it.")
    if prompt is None:
        raise RequestError(explain(name, prompt, "a prompt is never null", "Fill it in or drop the row."))
    if job.prompt_kind == "token_ids":
        return _checked_ids(name, prompt)
    if job.prompt_kind == "messages":
        return tokenizer.apply_chat_template(_conversation(name, prompt, job.config.system_prompt))
    if isinstance(prompt, bytes):
        prompt = prompt.decode("utf-8")
    if not isinstance(prompt, str):
        raise RequestError(explain(name, prompt, "a prompt is text", "Cast the column to string."))
    if not prompt:
        raise RequestError(explain(name, prompt, "a prompt is not empty", "Fill it in or drop the row."))
    if job.config.chat or job.config.system_prompt is not None:
        messages = _with_system([{"role": "user", "content": prompt}], job.config.system_prompt)
        return tokenizer.apply_chat_template(messages)
    return tokenizer.encode(prompt)


def _checked_ids(name: str, ids: Any) -> list[int]:
    fine = isinstance(ids, Sequence) and not isinstance(ids, (str, bytes))
    if not fine or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in ids):
        raise RequestError(explain(name, ids, "token ids are integers of 0 or more", "Pass a list of integers."))
    if not ids:
        raise RequestError(explain(name, ids, "a prompt has at least one token", "Fill it in or drop the row."))
    return list(ids)


def _conversation(name: str, messages: Any, system: str | None) -> list[Mapping[str, Any]]:
    """Chat messages from a list of structs, or from JSON text of one; nulls of a struct are absent fields."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise RequestError(explain(name, messages, f"not JSON ({error})", "Write a list of messages.")) from error
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        raise RequestError(explain(name, messages, "messages are a list of mappings", "Give role and content."))
    if not messages:
        raise RequestError(explain(name, messages, "a conversation has at least one message", "Drop the row."))
    return _with_system([{k: v for k, v in m.items() if v is not None} for m in messages], system)


def _with_system(messages: list[dict[str, Any]], system: str | None) -> list[Mapping[str, Any]]:
    if system is None or messages[0].get("role") == "system":
        return list(messages)
    return [{"role": "system", "content": system}, *messages]
