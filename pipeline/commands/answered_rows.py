"""Rows with answers as token ids, of files or of the output of a run. Training reads them.

A prompt has the tokens that a run with the same settings gives it; an answer those that a run scores, with its end.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline import layout
from pipeline.codec import explain
from pipeline.commands.read import read
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.fingerprint import config_of
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units, read_units
from pipeline.prompts.conversation import answered_turns
from pipeline.prompts.model_files import check_model, resolved_model
from pipeline.prompts.prompt import plain_values
from pipeline.prompts.tokenize import CONTINUATIONS, FAILURE, PROMPT_IDS, prepare_rows
from pipeline.settings.scoring import Score
from pipeline.sources import BAD, source_of
from pipeline.sources.finding import has_suffix
from pipeline.sources.formats import all_suffixes
from pipeline.sources.source import NO_ROWS
from pipeline.sources.walking import has_wildcards
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.urls import is_url, local_path
from pipeline.types import Slice, SourceFile, Unit, derived_row_ids

_ROWS_AT_ONCE = 1024
_MESSAGES, _ANSWER = "messages", "answer"
_TURNS = pa.schema([(_MESSAGES, pa.string()), (_ANSWER, pa.string())])
_OF_PROMPTS = ("prompt_column", "messages_column", "token_ids_column", "prompt_template", "tools", "tools_column",
               "chat", "chat_template_kwargs", "chat_template_kwargs_column", "system_prompt",
               "special_tokens_in_text")  # fmt: skip
"""Settings of a run that make its prompts."""
_NOT_USED = {"error": "the run failed it", "length": "the run cut its text at max_tokens"}


class AnsweredRow(NamedTuple):
    """A row, or a turn of the assistant in it: its id, token ids, and why it cannot be used (else None)."""

    row: str
    prompt: Sequence[int]
    answer: Sequence[int]
    fault: str | None


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """A source (:class:`pipeline.sources.Source`) whose tables are given, each with its row ids; and their answers."""

    schema: pa.Schema
    tables: Iterable[tuple[Sequence[str], pa.Table]]
    answer: str
    files: tuple[SourceFile, ...] = (SourceFile(key="", path="", digest="", stamp=""),)
    input_format: str = "rows"
    remedy: str = ""


def answered_rows(
    place: str, *, model: str, length: int, answer_column: str | None, settings: Mapping[str, Any]
) -> Iterator[AnsweredRow]:
    """Read the rows of a place; memory is bounded. The turns of a conversation follow each other.

    Args:
        place: an input of a run; or the output of one: its complete texts are answers, its settings make the prompts.
        model: whose tokenizer and chat template are used.
        length: tokens of prompt and answer, at most.
        answer_column: column of answers; None takes conversations and every turn of the assistant in them.
        settings: fields of ``RunConfig`` that make prompts or read files; ``chat`` is on if the model has a template.

    Raises:
        ConfigError, SourceError, WeightsError: settings, place or model are at fault; or the place has no rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"input": place, "output": folder, "model": model, "columns": [], "engine": {"max_model_len": length}}
        if taken := sorted({*fixed, "task"}.intersection(settings)):
            raise ConfigError(explain("data.prompts", taken, "training sets these itself", "Leave them out."))
        config = RunConfig.from_mapping({"special_tokens_in_text": "fail", **settings, **fixed})
        check_model(config)
        if (state := _run_of(place, config)) is not None:
            config, found = replace(config, **_prompt_settings(place, state)), _of_run(place, state, config)
        elif answer_column is None:
            found, config = _of_conversations(config), replace(config, messages_column=_MESSAGES)
        else:
            has_template = config.messages_column is None and resolved_model(config).tokenizer.has_chat_template
            config = replace(config, chat=settings.get("chat", has_template))
            found = _of_files(config, "answer_column", answer_column)
        task = Score(continuation_column=found.answer, with_end=True)
        job = resolve_job(replace(config, task=task), found, LocalStorage(folder, layout.SCRATCH))
        rows = 0
        for ids, table in found.tables:
            rows += table.num_rows
            unit = Unit(unit_id="", index=0, rows=Slice(file=0, first_row=0, num_rows=table.num_rows))
            made = prepare_rows(table, range(table.num_rows), unit, job)
            columns = (made[name].to_pylist() for name in (PROMPT_IDS, CONTINUATIONS, FAILURE))
            for row, prompt, answers, fault in zip(ids, *columns, strict=True):
                yield AnsweredRow(row, prompt or (), answers[0] if answers else (), fault)
        if not rows:
            raise SourceError(f"{place}: {NO_ROWS}")


def _of_files(config: RunConfig, setting: str, column: str) -> _Tables:
    """The rows of an input with a column."""
    source = source_of(config, LocalStorage(config.output, layout.SCRATCH))
    if column not in source.schema.names:
        rule = f"{config.input} has no such column. It has {source.schema.names}"
        remedy = "Name answers by data.answer_column, or conversations by data.messages_column."
        raise ConfigError(explain(f"data.{setting}", column, rule, remedy))
    units = list(plan_units(source, _ROWS_AT_ONCE, "", config.limit))
    ids = (derived_row_ids(unit.stretches(source.files)) for unit in units)
    return _Tables(schema=source.schema, answer=column, tables=zip(ids, read_units(source, units), strict=True))


def _of_conversations(config: RunConfig) -> _Tables:
    """A row for each turn of the assistant: the messages before it, and its text."""
    column = config.messages_column or _MESSAGES
    found = _of_files(config, "messages_column", column)
    tables = (_turns(ids, table, column) for ids, table in found.tables)
    return _Tables(schema=_TURNS, answer=_ANSWER, tables=tables)


def _turns(
    ids: Sequence[str], table: pa.Table, column: str, *, last: bool = False
) -> tuple[Sequence[str], pa.Table]:  # fmt: skip
    """The rows of :func:`_of_conversations`, or of the last turns alone."""
    rows: list[tuple[str, str | None, str | None, str | None]] = []
    faults = table[BAD].to_pylist() if BAD in table.column_names else [None] * table.num_rows
    for row, value, fault in zip(ids, plain_values(table[column]), faults, strict=True):
        try:
            turns = [] if fault else answered_turns(column, value)[-1 if last else 0 :]
            rows += [(row, json.dumps(before), answer, None) for before, answer in turns] or [(row, None, None, fault)]
        except Exception as error:  # whatever is wrong with one row's cell must not end the reading
            rows.append((row, None, None, str(error)))
    names, *columns = zip(*rows, strict=True)
    return names, pa.table(columns, schema=pa.schema([*_TURNS, (BAD, pa.string())]))


def _run_of(place: str, config: RunConfig) -> RunState | None:
    """The record of the run whose output a place is, or was filtered of; None if it is none."""
    is_folder = not has_suffix(place, all_suffixes()) if is_url(place) else os.path.isdir(local_path(place))
    if not is_folder or has_wildcards(place):
        return None
    state = RunState.load(open_storage(place, layout.SCRATCH, config.input_options))
    while state is not None and state.derived is not None:
        state = RunState.load_begun(open_storage(state.derived.source, layout.SCRATCH, config.input_options))
    return state


def _prompt_settings(place: str, state: RunState) -> dict[str, Any]:
    config = config_of(state.fingerprint, input=place, output=".")
    if config.input_format == "openai-batch" or config.token_ids_column is not None:
        rule = "its prompts are requests of an OpenAI batch or token ids, and training takes texts or messages"
        raise ConfigError(explain("data.files", place, rule, "Give a table of messages and answers."))
    found = {name: getattr(config, name) for name in _OF_PROMPTS}
    return found if config.turns_column is None else found | {"messages_column": _MESSAGES}


def _of_run(place: str, state: RunState, config: RunConfig) -> _Tables:
    """The input rows of an output, and its texts; or its conversations."""
    prefix, are_turns = state.fingerprint["column_prefix"], "turns_column" in state.fingerprint
    names = [prefix + name for name in ("row_id", "finish_reason", _MESSAGES if are_turns else "text")]

    def tables() -> Iterator[tuple[Sequence[str], pa.Table]]:
        for table in read(place, storage_options=config.input_options).tables():
            ids, ended = (table[name].to_pylist() for name in names[:2])
            faults = pa.array([_NOT_USED.get(reason) for reason in ended], pa.string())
            rows = table.select([*state.columns.names, names[-1]]).append_column(BAD, faults)
            # The run may have cut an earlier turn: a row records the end of the last one.
            yield _turns(ids, rows, names[-1], last=True) if are_turns else (ids, rows)

    if are_turns:
        return _Tables(schema=_TURNS, answer=_ANSWER, tables=tables())
    schema = pa.schema([*state.columns, (names[-1], pa.string())])
    return _Tables(schema=schema, answer=names[-1], tables=tables())
