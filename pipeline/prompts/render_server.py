"""A process that renders templates; see :mod:`pipeline.prompts.rendering`.

A request is the kind of the template, its source and its variables; the answer is the text, or the error.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from typing import Any, Literal

from pipeline.prompts.limited_process import serve
from pipeline.settings.template import PromptTemplate
from wedlm_core.templating import ChatTemplate

Kind = Literal["prompt", "chat"]
"""Prompt templates of runs, whose variables are a row's cells; and chat templates of models."""
_MOST_CHARS = 2_000  # of an error


def main(descriptor: int) -> None:
    """Serve the connection of this number."""
    serve(descriptor, lambda opening: rendered)


def rendered(request: tuple[Kind, str, Mapping[str, Any]]) -> str | Exception:
    """The text of a template, or the error that it raises; out of memory is for the caller, whatever that means."""
    kind, source, variables = request
    try:
        return _template(kind, source).render(variables)
    except MemoryError:
        raise
    except Exception as error:
        return _portable(error)


@functools.lru_cache(maxsize=8)
def _template(kind: Kind, source: str) -> PromptTemplate | ChatTemplate:
    return PromptTemplate(source) if kind == "prompt" else ChatTemplate(source)


def _portable(error: Exception) -> Exception:
    """The error as another process reads it; of one that is very long, or cannot be sent, its name and begin."""
    try:
        text = str(error)
        if len(text) <= _MOST_CHARS:
            read: Exception = pickle.loads(pickle.dumps(error))
            return read
        return RuntimeError(f"{type(error).__name__}: {text[:_MOST_CHARS]}...")
    except Exception:
        return RuntimeError(type(error).__name__)
