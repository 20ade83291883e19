"""Prompt templates: Jinja over a row's columns, sandboxed. Knows no Arrow and no tokenizer."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import meta, nodes
from jinja2.visitor import NodeTransformer

from pipeline.codec import BoundedTemplate, TemplateSyntaxError, explain
from pipeline.errors import ConfigError
from pipeline.settings.null_cells import NullCellError, RowEnvironment, cells_of

__all__ = ["WHOLE_ROW", "NullCellError", "PromptTemplate", "check_template"]

WHOLE_ROW = "row"
"""Template variable that maps column names to cells, for names that are no identifiers. A column named so wins."""
_SINGLE_BRACES = re.compile(r"(?<!\{)\{\s*([A-Za-z_]\w*)\s*\}(?!\})")


class _NoConstants(NodeTransformer):
    """Takes the constants out of a parsed template: Jinja would evaluate expressions of them as it looks for names."""

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        return nodes.ContextReference(lineno=node.lineno)


@functools.cache
def _environment() -> RowEnvironment:
    return RowEnvironment(autoescape=False, keep_trailing_newline=True)


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> tuple[BoundedTemplate, frozenset[str]]:
    """The compiled template and its free variables."""
    template = BoundedTemplate(_environment(), text)
    every = meta.find_undeclared_variables(_NoConstants().visit(_environment().parse(text)))
    return template, frozenset(every - set(_environment().globals))


def check_template(text: str) -> None:
    """Check a template before any row is rendered.

    Raises:
        ConfigError: ``text`` is not a template, or it uses no column: every row would have the same prompt.
    """
    if not isinstance(text, str) or not text:
        raise ConfigError(f"prompt_template={text!r}: a template is text and not empty. Write for example "
                          "'{{ question }}'.")  # fmt: skip
    try:
        _, names = _compiled(text)
    except TemplateSyntaxError as error:
        raise ConfigError(explain("prompt_template", text, f"not a Jinja template ({error})", "Correct it.")) from error
    if not names:
        braced = _SINGLE_BRACES.search(text)
        name = "question" if braced is None else braced[1]
        remedy = f"Write columns in two braces: {{{{ {name} }}}}."
        raise ConfigError(explain("prompt_template", text, "it uses no column, so all rows have one prompt", remedy))


class PromptTemplate:
    """A compiled template.

    Attributes:
        text: its source.
        names: its free variables, :data:`WHOLE_ROW` included if it is used.
    """

    def __init__(self, text: str) -> None:
        check_template(text)
        self.text = text
        self._template, self.names = _compiled(text)

    @property
    def takes_whole_row(self) -> bool:
        """Whether it uses ``row``."""
        return WHOLE_ROW in self.names

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt of a row. The template may test or replace a cell that is null, missing or NaN, but not write it.

        Raises:
            NullCellError: the template uses such a cell otherwise.
            TemplateLimitError: it is too long.
            Exception: whatever Jinja or an expression of the template raises.
        """
        cells = cells_of(row)
        return self._template.render({WHOLE_ROW: cells, **cells} if self.takes_whole_row else cells)
