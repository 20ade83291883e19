"""Encodes the texts that are scored after each row's prompt. A row with a bad text is marked as failed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.codec import Failure, RequestError, StructuredOutputs, WeDLMError, explain, read_json
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import Job
from pipeline.prompts.model_files import resolved_model
from pipeline.prompts.prompt import encode_marked, is_marked, marked, no_value, values
from pipeline.settings.scoring import checked_choices, checked_text


@dataclass(frozen=True, kw_only=True)
class Continuations:
    """The texts of a row to score, and the tokens of each."""

    labels: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> int:
        """KV entries that the longest text takes after the prompt: its last token needs no entry."""
        return max(map(len, self.token_ids)) - 1


def continuations_of(
    table: pa.Table, given: Sequence[Mapping[str, Any] | None], job: Job
) -> list[Continuations | Failure | None]:
    """The texts to score for each row; None for a row without texts to score.

    ``given``: each row's own sampling parameters.
    """
    task = job.config.task
    if task is None:
        return _of_structures(given, job) if job.config.label_probabilities else [None] * table.num_rows
    if task.column is None:
        return [_attempt(job.config, tuple(task.choices))] * table.num_rows
    encoded = functools.cache(functools.partial(_encoded, job.config, of_rows=True))
    return [_of_cell(cell, job, encoded) for cell in values(table[task.column])]


def check_continuations(config: RunConfig) -> None:
    """Check that the choices of a run can be told apart by its model's tokenizer.

    Raises:
        ConfigError: two choices have the same tokens, or ``label_probabilities`` is set and outputs are no choices.
        WeightsError: the model or its tokenizer cannot be read.
    """
    try:
        if config.task is not None and config.task.choices:
            _encoded(config, tuple(config.task.choices))
        if config.label_probabilities and "structured_outputs" not in config.sampling_columns:
            labels = labels_of(config.sampling.structure)
            if labels is None:
                rule = "outputs are choices, or JSON whose schema is a single enum, and after is not set"
                raise RequestError(explain("label_probabilities", True, rule, "Set structured_outputs.choice."))
            _encoded(config, labels)
    except RequestError as error:
        raise ConfigError(str(error)) from error


def labels_of(structure: StructuredOutputs | None) -> tuple[str, ...] | None:
    """The possible outputs of a form; None for a form that is no choice or enum, or that follows free text."""
    if structure is None or structure.after is not None:
        return None
    if structure.choice is not None:
        return tuple(structure.choice)
    schema = structure.schema
    listed = None if schema is None else schema.get("enum")
    if schema is None or not listed or not set(schema) <= {"enum", "type", "title", "description", "$schema"}:
        return None
    item, key = structure.separators
    texts = (json.dumps(value, ensure_ascii=False, separators=(item, key)) for value in listed)
    return tuple(dict.fromkeys(texts))


def _of_structures(given: Sequence[Mapping[str, Any] | None], job: Job) -> list[Continuations | Failure | None]:
    """The choices of each row's output form; None for a row with another form."""
    encoded = functools.cache(functools.partial(_attempt, job.config))
    found: list[Continuations | Failure | None] = []
    for own in given:
        structure, fields = job.config.sampling.structure, (own or {}).get("structured_outputs")
        try:
            if fields is not None:
                structure = StructuredOutputs(**fields) if fields else None
            labels = labels_of(structure)
        except Exception:  # reported with the row's other parameters
            labels = None
        found.append(None if labels is None else encoded(labels))
    return found


def _listed(cell: Any) -> Any:
    """The value of a cell; text is read as JSON if possible, as CSV has no lists."""
    try:
        return read_json(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError):
        return cell


def _of_cell(cell: Any, job: Job, encoded: Callable[[tuple[str, ...]], Continuations]) -> Continuations | Failure:
    task = job.config.task
    assert task is not None
    name = str(task.column)
    try:
        if isinstance(cell, Exception):
            raise no_value(f"column {name!r}", cell)
        if task.continuation_column is not None:
            texts: tuple[str, ...] = (checked_text(name, cell),)
        else:
            texts = checked_choices(name, _listed(cell))
        return encoded(texts)
    except Exception as error:  # one row's bad cell must not end the run
        return Failure.of(error)


def _attempt(config: RunConfig, labels: tuple[str, ...]) -> Continuations | Failure:
    try:
        return _encoded(config, labels)
    except WeDLMError as error:
        return Failure.of(error)


def _encoded(config: RunConfig, labels: tuple[str, ...], *, of_rows: bool = False) -> Continuations:
    """The tokens of each text. ``of_rows``: the texts come from rows, so ``special_tokens_in_text`` applies.

    Raises:
        RequestError: a text has no token, or two have the same tokens.
    """
    model = resolved_model(config)
    end = model.tokenizer.eos_token_ids or model.config.eos_token_ids
    with_end = config.task is not None and config.task.with_end
    if with_end and not end:
        raise RequestError(explain("task.with_end", True, "this model has no end-of-sequence token", "Leave it out."))
    encode_one = functools.partial(encode_marked, tokenizer=model.tokenizer)
    found: dict[tuple[int, ...], str] = {}
    for label in labels:
        text = marked("text to score", label, config) if of_rows else label
        ids = tuple(encode_one(text) if is_marked(text, config) else model.tokenizer.encode(text))
        if not ids:
            rule = "this model's tokenizer gives it no token"
            raise RequestError(explain("text to score", label, rule, "Change it."))
        if ids in found:
            rule = f"for this model's tokenizer it is the same as {found[ids]!r}"
            raise RequestError(explain("choice", label, rule, "Leave out one of the two."))
        found[ids] = label
    return Continuations(labels=labels, token_ids=tuple(ids + tuple(end[:1]) * with_end for ids in found))
