"""Chat messages from the cells of a column: OpenAI's (``role``, ``content``) or ShareGPT's (``from``, ``value``).

A content is text, or a list of text parts; the texts are joined by line ends, as vLLM joins them. In a
ShareGPT conversation the assistant's turn at the end is the reply that was recorded: it is left out, to be generated.
A null in JSON text is kept, such as the default of a tool's parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.codec import RequestError, explain, read_json
from pipeline.sources.limits import MAX_DEPTH, is_too_deep
from wedlm_core.messages import with_text

MOST_TURNS = 256
"""Turns of a row: the chat template is rendered once for each."""
_TURNS = "a list of the user's texts or messages"
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation"), "tool"),
}
"""ShareGPT's speakers -> roles."""


def conversation(name: str, value: Any) -> list[Mapping[str, Any]]:
    """The messages in a cell of the column ``name``.

    Raises:
        RequestError: no list of messages, none at all, an unknown speaker, or a content that is not text.
    """
    messages = listed(name, value)
    recorded = bool(messages) and all(_is_recorded(message) for message in messages)
    found = [_message(name, message) for message in messages]
    if recorded and found[-1]["role"] == "assistant":
        found.pop()
    if not found:
        rule = "a conversation has at least one message" + (" before the reply" if recorded else "")
        raise RequestError(explain(name, value, rule, "Give it one."))
    return found


def user_turns(name: str, value: Any) -> list[dict[str, str]]:
    """The messages in a cell of turns: perhaps a system message, then the user's.

    Raises:
        RequestError: no list of texts and messages, no turn, another speaker, or a message without text.
    """
    items = _read(name, value, _TURNS)
    if not isinstance(items, list) or not all(isinstance(item, (str, Mapping)) for item in items):
        raise RequestError(explain(name, value, _TURNS, 'Write ["First question?", "Second question?"].'))
    asked = [_message(name, {"role": "user", "content": own} if isinstance(own, str) else own) for own in items]
    found: list[dict[str, Any]] = [{"role": own.get("role"), "content": own.get("content", "")} for own in asked]
    for place, message in enumerate(found):
        if message["role"] != "user" and not (place == 0 and message["role"] == "system"):
            rule = "a system message at the beginning, then the user's: answers are generated"
            raise RequestError(explain(f"{name}[{place}].role", message["role"], rule, "Take it out."))
        if message["content"] in (None, ""):
            raise RequestError(explain(f"{name}[{place}]", "", "a turn is not empty", "Fill it in, or take it out."))
        if not isinstance(message["content"], str):
            raise RequestError(explain(f"{name}[{place}]", message["content"], "a turn is text", "Write it as text."))
    count = sum(message["role"] == "user" for message in found)
    if not 1 <= count <= MOST_TURNS:
        raise RequestError(explain(name, f"{count} turns", f"1 to {MOST_TURNS} turns", "Give it one, or split it."))
    return found


def answered_turns(name: str, value: Any) -> list[tuple[list[Mapping[str, Any]], str]]:
    """For each turn of the assistant in a cell of the column ``name``: the messages before it, and its text.

    Raises:
        RequestError: as :func:`conversation`; or there is no such turn after a message, or one has no text.
    """
    found = [_message(name, message) for message in listed(name, value)]
    turns = [place for place, message in enumerate(found) if place and message.get("role") == "assistant"]
    if not turns:
        raise RequestError(explain(name, value, "no turn of the assistant after a message", "Add an answer to it."))
    for place in turns:
        if not isinstance(found[place].get("content"), str) or not found[place]["content"]:
            raise RequestError(explain(name, found[place], "a turn to train on has a text", "Leave it out."))
    return [(found[:place], found[place]["content"]) for place in turns]


def _is_recorded(message: Mapping[str, Any]) -> bool:
    """Whether a message is one of ShareGPT's."""
    return message.get("role") is None and message.get("from") is not None


def _message(name: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    if _is_recorded(message):
        role = _ROLES.get(str(message["from"]).lower())
        if role is None:
            rule = f"a speaker is one of {sorted(_ROLES)}"
            raise RequestError(explain(f"{name}.from", message["from"], rule, "Rename it."))
        message = {"role": role, "content": message.get("value")}
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        rule = "a message has a text, or tool calls"
        raise RequestError(explain(f"{name}.content", content, rule, "Fill it in."))
    return with_text(name, message)


def listed(name: str, value: Any) -> list[dict[str, Any]]:
    """A list of mappings, given as such or as JSON text.

    Raises:
        RequestError: the cell of the column ``name`` holds something else.
    """
    value = _read(name, value, "a list of mappings")
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RequestError(explain(name, value, "a list of mappings", "Messages have role and content."))
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping, given as such or as JSON text.

    Raises:
        RequestError: the cell of the column ``name`` holds something else.
    """
    value = _read(name, value, "a mapping")
    if not isinstance(value, Mapping):
        raise RequestError(explain(name, value, "a mapping of names to values", 'Write {"enable_thinking": false}.'))
    return dict(value)


def _read(name: str, value: Any, wanted: str) -> Any:
    """A value, parsed if it is text, and nested no deeper than templates may look."""
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError as error:
            raise RequestError(explain(name, value, f"not JSON ({error})", f"Write {wanted}.")) from error
        except RecursionError as error:
            raise RequestError(explain(name, value, "nested too deeply", "Flatten it.")) from error
    if is_too_deep(value):
        raise RequestError(explain(name, value, f"at most {MAX_DEPTH} levels of lists and mappings", "Flatten it."))
    return value


def with_system(messages: list[Mapping[str, Any]], system: str | None) -> list[Mapping[str, Any]]:
    """The messages, after a system message unless they begin with one or there is none to add."""
    if system is None or messages[0].get("role") == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]
