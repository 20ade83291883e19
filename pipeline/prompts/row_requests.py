"""The request of each row before its prompt is encoded: the prompt, the row's own parameters, and its tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.codec import Failure, RequestError, foreign_param, param_of_text
from pipeline.plan.job import Job
from pipeline.prompts.batch_request import row_request
from pipeline.prompts.conversation import listed
from pipeline.prompts.limited_process import UnstartedError
from pipeline.prompts.prompt import (
    NO_CELLS,
    ChatCells,
    TemplateRenderError,
    as_written,
    marked,
    no_value,
    plain_values,
    prompt_of,
    template_values,
    text_prompt,
    values,
)
from pipeline.prompts.rendering import render_prompt
from pipeline.prompts.structures import of_cell
from pipeline.prompts.tools import offer, with_form
from pipeline.settings.template import NullCellError, PromptTemplate
from pipeline.sources.formats.openai_batch import BATCH_COLUMNS
from pipeline.sources.types import has_whole_numbers, holds_any_values

Prompt = str | list[int] | Failure
"""The prompt of a row: text to encode, token ids, or a failure."""
Params = Mapping[str, Any] | None
"""Sampling parameters of a row's own."""
Names = Sequence[str] | None
"""Of the tools that a row may call; None: its calls are not read."""


_STRUCTURE = "structured_outputs"


def row_requests(table: pa.Table, job: Job) -> tuple[list[Prompt], list[Params], list[Names]]:
    """For each row its prompt, its own sampling parameters, and the names of the tools that it may call."""
    if job.prompt_kind != "request":
        prompts, given = _with_own_params(_prompts(table, job), table, job)
        return prompts, given, _offered(prompts, given, table, job)
    lines = zip(*(values(table[name]) for name in BATCH_COLUMNS.names), strict=True)
    asked = [row_request(line, job) for line in lines]
    return [row.prompt for row in asked], [row.params for row in asked], [row.offered for row in asked]


def _offered(prompts: list[Prompt], given: list[Params], table: pa.Table, job: Job) -> list[Names]:
    """For each row the names of the tools that it may call; its parameters get the form of a forced call.

    A row whose tools are malformed is failed.
    """
    found: list[Names] = [None] * table.num_rows
    config = job.config
    if config.tool_choice is None:
        return found
    for i, cells in enumerate(_chat_cells(table, job)):
        if isinstance(prompts[i], Failure):
            continue
        try:
            tools = config.tools if cells.tools is None else listed(str(config.tools_column), cells.tools)
            own = offer("tools", tools, config.tool_choice)
            if own is not None:
                given[i] = with_form(given[i], own, prompts[i], config)
                found[i] = own.names
        except Exception as error:  # whatever is wrong with one row's tools must not end the run
            prompts[i] = Failure.of(error)
    return found


def _with_own_params(
    prompts: list[Prompt], table: pa.Table, job: Job
) -> tuple[list[Prompt], list[Params]]:  # fmt: skip
    """The prompts, and for each row its own sampling parameters; None if it has none.

    A row whose cell of ``structured_outputs`` cannot be parsed is failed.
    """
    columns = {name: values(table[column]) for name, column in job.config.sampling_columns.items()}
    if not columns:
        return prompts, [None] * table.num_rows
    asked = [*prompts]
    if _STRUCTURE in columns:
        name = job.config.sampling_columns[_STRUCTURE]
        any_values = holds_any_values(job.source.schema.field(name))
        for i, cell in enumerate(columns[_STRUCTURE]):
            try:
                is_empty = cell is None or (any_values and cell == "")
                columns[_STRUCTURE][i] = None if is_empty else of_cell(name, cell)
            except Exception as error:  # whatever is wrong with one row's cell must not end the run
                columns[_STRUCTURE][i] = None
                asked[i] = asked[i] if isinstance(asked[i], Failure) else Failure.of(error)
    for name in columns.keys() - {_STRUCTURE}:
        field = job.source.schema.field(job.config.sampling_columns[name])
        if holds_any_values(field):
            columns[name] = [None if cell is None else param_of_text(name, cell) for cell in columns[name]]
        elif has_whole_numbers(field):
            columns[name] = [as_written(cell) for cell in columns[name]]
        _check_json(name, columns[name], asked)
    rows = zip(*columns.values(), strict=True)
    return asked, [dict(zip(columns, row, strict=True)) for row in rows]


def _check_json(name: str, cells: list[Any], asked: list[Prompt]) -> None:
    """Fail each row with a value that JSON does not have: bytes, a decimal, a date, text that is not UTF-8."""
    for i, cell in enumerate(cells):
        try:
            json.dumps(cell)
        except (TypeError, ValueError):
            fault = no_value(name, cell) if isinstance(cell, Exception) else foreign_param(name, cell)
            asked[i] = asked[i] if isinstance(asked[i], Failure) else Failure.of(fault)
            cells[i] = None


def _prompts(table: pa.Table, job: Job) -> list[Prompt]:
    """For each row the text to encode, the token ids, or the failure."""
    if job.prompt_kind == "template":
        return _rendered(table, job)
    cells = _chat_cells(table, job)
    plain = job.prompt_kind == "text" and not job.config.chat and job.config.system_prompt is None
    plain &= job.config.special_tokens_in_text == "control"
    read: Callable[[Any, Job, ChatCells], Prompt] = prompt_of
    if job.prompt_kind == "turns":
        from pipeline.prompts.turns import turns_prompt

        read = turns_prompt
    prompts: list[Prompt] = []
    for value, own in zip(plain_values(table[job.prompt_column]), cells, strict=True):
        if plain and isinstance(value, str) and value and not value.isspace():
            prompts.append(value)
            continue
        try:
            prompts.append(read(value, job, own))
        except UnstartedError:  # no fault of the row
            raise
        except Exception as error:  # whatever is wrong with one row's prompt must not end the run
            prompts.append(Failure.of(error))
    return prompts


def _chat_cells(table: pa.Table, job: Job) -> list[ChatCells]:
    """For each row its tools and its variables of the chat template."""
    names = job.config.tools_column, job.config.chat_template_kwargs_column
    if names == (None, None):
        return [NO_CELLS] * table.num_rows
    tools, variables = ([None] * table.num_rows if name is None else plain_values(table[name]) for name in names)
    return [ChatCells(tools=t, variables=v) for t, v in zip(tools, variables, strict=True)]


def _rendered(table: pa.Table, job: Job) -> list[Prompt]:
    assert job.config.prompt_template is not None
    template = PromptTemplate(job.config.prompt_template)
    names = [n for n in job.source.schema.names if template.takes_whole_row or n in template.names]
    fields = [job.source.schema.field(name) for name in names]
    columns = [template_values(field, table[field.name]) for field in fields]
    chat_cells = _chat_cells(table, job)
    prompts: list[Prompt] = []
    for i in range(table.num_rows):
        cells = {name: column[i] for name, column in zip(names, columns, strict=True)}
        try:
            for name, cell in cells.items():
                if isinstance(cell, Exception):
                    raise no_value(f"column {name!r}", cell)
            cells = {name: marked(name, cell, job.config) for name, cell in cells.items()}
            prompts.append(text_prompt(render_prompt(template, cells), job, chat_cells[i]))
        except UnstartedError:  # no fault of the row
            raise
        except RequestError as error:
            prompts.append(Failure.of(error))
        except NullCellError as error:
            message = (
                f"prompt_template: {error}. Fill it in, or replace it in the template: {{{{ name | default('') }}}}."
            )
            prompts.append(Failure.of(TemplateRenderError(message)))
        except Exception as error:  # an expression of the template may raise anything
            reason = str(error).rstrip(".")
            message = f"prompt_template: {type(error).__name__}: {reason}. Correct the row or the template."
            prompts.append(Failure.of(TemplateRenderError(message)))
    return prompts
