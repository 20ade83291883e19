"""ChatTemplate: render the Jinja template that comes with a tokenizer and turns messages into a prompt.

The result equals that of ``apply_chat_template`` in transformers 5.23 (tests compare them): the same variables, block
trimming, loop controls, ``tojson``, ``raise_exception``, ``strftime_now`` and ``{% generation %}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from wedlm_core.templating.sandbox import BoundedEnvironment, BoundedTemplate

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message that may hold its reasoning. Most templates read the first, some the second."""


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        text: its source.
    """

    def __init__(self, text: str) -> None:
        """Compile ``text``.

        Raises:
            TemplateSyntaxError: it is not a valid template.
        """
        self.text = text
        self._template = BoundedTemplate(_environment(), text)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt of a conversation. ``variables``: those of :func:`chat_variables`.

        Raises:
            TemplateLimitError: the text is too long.
            Exception: an error that the template itself raises.
        """
        return self._template.render(variables)


def chat_variables(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    **variables: Any,
) -> dict[str, Any]:
    """The variables of a chat template for a conversation: JSON types only.

    Args:
        messages: mappings. Keys with the value None are removed, because templates test whether a key is present.
        tools: descriptions of tools.
        add_generation_prompt: append the opening of the assistant's turn.
        variables: further variables of the template, such as special tokens.
    """
    return {
        **{name: _plain(value) for name, value in variables.items()},
        "messages": [_aliased(_plain(message)) for message in messages],
        "tools": _plain(tools),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; here its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block into a call that renders its content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> str:
        return caller()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _plain(value: Any) -> Any:
    """The value converted to JSON types: templates must not call methods of other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else [_plain(item) for item in value]
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return _plain(value.item())
    return f"<{type(value).__name__}>"


def _aliased(message: Any) -> Any:
    """The message with its reasoning under the keys that templates read."""
    if not isinstance(message, dict):
        return message
    message = {key: item for key, item in message.items() if item is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
