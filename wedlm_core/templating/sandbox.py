"""Jinja's sandbox with a limit on the length of a template and on the text that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wedlm_core.errors import ConfigError, RequestError

MOST_CHARS = 8 * 2**20
"""Longest text of one rendering: four times a prompt of a million tokens with two characters each."""
_MOST_SOURCE_CHARS = 2**20
"""Longest template. Published chat templates have up to 30,000 characters; this leaves room for a prompt template with
many examples, and compiles within seconds."""


class TemplateLimitError(RequestError):
    """Rendering a template writes too much text, or takes too long or too much memory."""


class TemplateSyntaxError(ConfigError):
    """A template cannot be compiled."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Its arguments are those of a Jinja environment.

    Compiling a template evaluates no part of it.
    """

    def __init__(self, **settings: Any) -> None:
        # Jinja evaluates constant expressions when it compiles them: unless it does not optimise, and their text
        # depends on the context.
        super().__init__(**settings, optimized=False, finalize=_as_it_is)
        del self.globals["lipsum"]  # it writes random text


class BoundedTemplate:
    """A compiled template."""

    def __init__(self, environment: BoundedEnvironment, text: str) -> None:
        """Compile ``text``.

        Raises:
            TemplateSyntaxError: it is not a valid template, too long, or nested too deeply.
        """
        if len(text) > _MOST_SOURCE_CHARS:
            raise TemplateSyntaxError(f"it has {len(text)} characters, and {_MOST_SOURCE_CHARS} is the most")
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise TemplateSyntaxError(" ".join(str(error).split())) from error
        except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise TemplateSyntaxError(f"nested too deeply, or a literal is too long: {type(error).__name__}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables.

        Raises:
            TemplateLimitError: it is longer than :data:`MOST_CHARS`; it is cut off there.
            Exception: an error that an expression of the template raises.
        """
        pieces, chars = [], 0
        for piece in self._template.generate(variables):
            chars += len(piece)
            if chars > MOST_CHARS:
                raise TemplateLimitError(
                    f"the template writes more than {MOST_CHARS} characters. Shorten its loops, or the texts in the row"
                )
            pieces.append(piece)
        return "".join(pieces)


@pass_context
def _as_it_is(context: object, value: Any) -> Any:
    return value
