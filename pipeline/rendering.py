"""Prompt templates: Jinja over a row's columns, sandboxed and strict. Knows no Arrow and no tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.errors import ConfigError

__all__ = ["WHOLE_ROW", "PromptTemplate", "check_template"]

WHOLE_ROW = "row"
"""In a template, the mapping of all columns, for names that are no identifiers (a column of that name wins)."""


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


def check_template(text: str) -> None:
    """Raise ConfigError unless ``text`` is a template."""
    if not isinstance(text, str) or not text:
        raise ConfigError(f"prompt_template={text!r}: a template is text and not empty. Write for example "
                          "'{{ question }}'.")  # fmt: skip
    try:
        _environment().parse(text)
    except TemplateError as error:
        raise ConfigError(f"prompt_template={text!r}: not a Jinja template ({error}). Mend it.") from error


class PromptTemplate:
    """A compiled template.

    Attributes:
        names: the variables it takes from outside, :data:`WHOLE_ROW` among them where it is used.
    """

    def __init__(self, text: str) -> None:
        check_template(text)
        every = meta.find_undeclared_variables(_environment().parse(text))
        self.names = frozenset(every - set(_environment().globals))
        self._template = _environment().from_string(text)

    @property
    def takes_whole_row(self) -> bool:
        """Whether it looks columns up in ``row``."""
        return WHOLE_ROW in self.names

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt of a row; raises what Jinja or an expression of the template raises."""
        return self._template.render(row) if not self.takes_whole_row else self._template.render({"row": row, **row})
