"""Prompt templates: Jinja over a row's columns, in a sandbox and within limits. Knows no Arrow and no tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, meta

from pipeline.codec import BoundedEnvironment, BoundedTemplate, TemplateLimitError, TemplateSyntaxError, explain
from pipeline.errors import ConfigError

__all__ = ["WHOLE_ROW", "PromptTemplate", "check_template"]

WHOLE_ROW = "row"
"""In a template, the mapping of all columns, for names that are no identifiers (a column of that name wins)."""


@functools.cache
def _environment() -> BoundedEnvironment:
    return BoundedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> tuple[BoundedTemplate, frozenset[str]]:
    """The template and the variables it takes from outside."""
    template = BoundedTemplate(_environment(), text)
    every = meta.find_undeclared_variables(_environment().parse(text))
    return template, frozenset(every - set(_environment().globals))


def check_template(text: str) -> None:
    """Raise ConfigError unless ``text`` is a template, and one that ends where it is the same for every row."""
    if not isinstance(text, str) or not text:
        raise ConfigError(f"prompt_template={text!r}: a template is text and not empty. Write for example "
                          "'{{ question }}'.")  # fmt: skip
    try:
        template, names = _compiled(text)
        if not names:
            template.render({})
    except TemplateSyntaxError as error:
        raise ConfigError(explain("prompt_template", text, f"not a Jinja template ({error})", "Mend it.")) from error
    except TemplateLimitError as error:
        raise ConfigError(explain("prompt_template", text, f"no row can be rendered: {error}", "Mend it.")) from error
    except Exception:
        pass


class PromptTemplate:
    """A compiled template.

    Attributes:
        names: the variables it takes from outside, :data:`WHOLE_ROW` among them where it is used.
    """

    def __init__(self, text: str) -> None:
        check_template(text)
        self._template, self.names = _compiled(text)

    @property
    def takes_whole_row(self) -> bool:
        """Whether it looks columns up in ``row``."""
        return WHOLE_ROW in self.names

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt of a row.

        Raises:
            TemplateLimitError: it would take too long, or too much memory.
            Exception: what Jinja or an expression of the template raises.
        """
        try:
            return self._template.render(row if not self.takes_whole_row else {"row": row, **row})
        except TemplateLimitError as error:
            raise TemplateLimitError(f"prompt_template: {error}.") from error
