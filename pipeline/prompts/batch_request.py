"""The prompt and the sampling parameters of a line of an OpenAI batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.codec import Failure, RequestError, explain
from pipeline.plan.job import Job
from pipeline.prompts.batch_parameters import body_params
from pipeline.prompts.cells import no_value
from pipeline.prompts.conversation import conversation
from pipeline.prompts.limited_process import UnstartedError
from pipeline.prompts.prompt import ChatCells, chat_prompt, checked_ids, noted
from pipeline.prompts.special_text import marked
from pipeline.sources.formats.openai_batch import BATCH_COLUMNS

__all__ = ["CHAT", "COMPLETIONS", "RowRequest", "row_request"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ENDPOINTS = (CHAT, COMPLETIONS)
_ANY = "*"
_IN_CHAT = frozenset({"model", "messages", "chat_template_kwargs"})
_IN_COMPLETIONS = frozenset({"model", "prompt"})


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """The request of a line.

    Attributes:
        prompt: text to encode, token ids, or why there is none.
        params: its sampling parameters, by their names here; None of a failed row.
    """

    prompt: str | list[int] | Failure
    params: Mapping[str, Any] | None = None


def row_request(line: Sequence[Any], job: Job) -> RowRequest:
    """The request of a line, or the failure of its row.

    Args:
        line: the cells of :data:`~pipeline.sources.formats.openai_batch.BATCH_COLUMNS`.
        job: the resolved run.
    """
    try:
        return _request(dict(zip(BATCH_COLUMNS.names, line, strict=True)), job)
    except UnstartedError:  # no fault of the row
        raise
    except Exception as error:  # whatever is wrong with one row must not end the run
        return RowRequest(prompt=Failure.of(error))


def _request(line: Mapping[str, Any], job: Job) -> RowRequest:
    for name, value in line.items():
        if isinstance(value, Exception):
            raise no_value(name, value)
    if not line["custom_id"]:
        raise RequestError(explain("custom_id", line["custom_id"], "each line has one", "Give it one."))
    if line["method"] != "POST":
        raise RequestError(explain("method", line["method"], "POST", 'Write "POST".'))
    if line["url"] not in _ENDPOINTS:
        raise RequestError(explain("url", line["url"], f"one of {list(_ENDPOINTS)}", "Move the line to another batch."))
    body, chat = _body(line["body"]), line["url"] == CHAT
    _check_model(body.get("model"), job)
    params = body_params(body, chat=chat, own=_IN_CHAT if chat else _IN_COMPLETIONS)
    prompt = _chat(body, job) if chat else marked("body.prompt", _prompt(body.get("prompt")), job.config)
    return RowRequest(prompt=prompt, params=params)


def _body(text: str | None) -> Mapping[str, Any]:
    try:
        body = json.loads(text or "null")
    except (ValueError, RecursionError):
        body = text
    if not isinstance(body, Mapping):
        raise RequestError(explain("body", body, "an object of model, prompt and parameters", "Write one."))
    return body


def _check_model(name: Any, job: Job) -> None:
    """Refuse a line that asks for another model than the run's."""
    config = job.config
    known = (config.model, config.model_name, *config.served_model_names)
    if name is not None and name not in known and _ANY not in config.served_model_names:
        raise RequestError(
            explain("body.model", name, f"this run's model is {config.model_name!r}",
                    f"Say that it may be asked for by this name: served_model_names=[{str(name)!r}].")
        )  # fmt: skip


def _chat(body: Mapping[str, Any], job: Job) -> str:
    messages = [
        {**message, "role": "system"} if message.get("role") == "developer" else message
        for message in marked("body.messages", conversation("body.messages", body.get("messages")), job.config)
    ]
    text = chat_prompt(messages, job, ChatCells(variables=body.get("chat_template_kwargs")))
    return noted(text, *(message.get("content") or message.get("tool_calls") for message in messages))


def _prompt(value: Any) -> str | list[int]:
    """Text or token ids, alone or as the only one of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return noted(value, value)
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        rule = f"one prompt to a line, here are {len(value)}"
        raise RequestError(explain("body.prompt", value, rule, "Give each a line, with a custom_id of its own."))
    if isinstance(value, list):
        return checked_ids("body.prompt", value)
    raise RequestError(explain("body.prompt", value, "text that is not empty, or token ids", "Fill it in."))
