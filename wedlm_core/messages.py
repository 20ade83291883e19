"""Contents of chat messages as texts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wedlm_core.errors import RequestError, explain

_TEXT_PARTS = ("text", "input_text", "output_text")


def with_text(name: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose content is no list of parts: the texts of all parts, joined by line ends, as vLLM joins them.

    Args:
        name: of the messages, for errors.
        message: not changed.

    Raises:
        RequestError: a part is no text.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(_text_of(name, part) for part in content)}


def _text_of(name: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    text = part.get("text") if isinstance(part, Mapping) and kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        rule = "a part of a message is {'type': 'text', 'text': ...}: the model reads text only"
        raise RequestError(
            explain(f"{name}.content", f"part of type {kind!r}", rule, "Leave the part out, or the row.")
        )
    return text
