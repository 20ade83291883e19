"""Renders templates in a process with limits of memory and processor time: a row that exceeds one fails alone."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pipeline.codec import RequestError, TemplateLimitError
from pipeline.prompts.limited_process import ExceededError, LimitedProcess, UnsendableError
from pipeline.settings.template import PromptTemplate
from wedlm_core.templating import ChatTemplate

_SECONDS, _BYTES = 5, 1 << 30  # of a row; a conversation of 5,000 messages takes a fifth of a second


def render_prompt(template: PromptTemplate, row: Mapping[str, Any]) -> str:
    """The prompt of a row.

    Raises:
        TemplateLimitError: its text is too long, or takes too long or too much memory.
        RequestError: a variable cannot be sent to the process.
        UnstartedError: no process can be started.
        Exception: any of :meth:`PromptTemplate.render`.
    """
    try:
        return _render("prompt", template.text, row)
    except TemplateLimitError as error:
        raise TemplateLimitError(f"prompt_template: {error}.") from error


def render_chat(template: ChatTemplate, variables: Mapping[str, Any]) -> str:
    """The prompt of a conversation; ``variables`` are those of :func:`wedlm_core.templating.chat_variables`.

    Raises:
        TemplateLimitError: its text is too long, or takes too long or too much memory.
        RequestError: a variable cannot be sent to the process.
        UnstartedError: no process can be started.
        Exception: any of :meth:`ChatTemplate.render`.
    """
    return _render("chat", template.text, variables)


def _render(kind: Kind, source: str, variables: Mapping[str, Any]) -> str:
    try:
        text: str = _process().ask((kind, source, variables))
    except ExceededError as error:
        remedy = "Shorten its loops, or the texts and lists in the row"
        raise TemplateLimitError(f"the template {error}. {remedy}") from None
    except UnsendableError as error:
        name = next((name for name, value in variables.items() if not _is_sendable(value)), kind)
        rule = f"a template cannot be given this value ({error})"
        raise RequestError(f"{name!r}: {rule}. Convert the column to text, numbers, lists or objects.") from None
    return text


def _is_sendable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


@functools.cache
def _process() -> LimitedProcess:
    return LimitedProcess(_renderer, seconds=_SECONDS, most_bytes=_BYTES)


os.register_at_fork(after_in_child=_process.cache_clear)  # two processes cannot share a connection


Kind = Literal["prompt", "chat"]
"""Prompt templates of runs, whose variables are a row's cells; and chat templates of models."""


def _renderer() -> Callable[[tuple[Kind, str, Mapping[str, Any]]], str]:
    """In that process: renders a template of some kind and source, with its variables."""
    return lambda request: _template(request[0], request[1]).render(request[2])


@functools.lru_cache(maxsize=8)
def _template(kind: Kind, source: str) -> PromptTemplate | ChatTemplate:
    return PromptTemplate(source) if kind == "prompt" else ChatTemplate(source)
