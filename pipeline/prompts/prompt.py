"""Makes one row's prompt (text to encode, or token ids) from its cells."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.codec import RequestError, explain
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.prompts.conversation import conversation, listed, mapping, with_system
from pipeline.prompts.model_files import resolved_model
from pipeline.settings.template import JsonText
from pipeline.sources.json_text import JsonReader, MinusZero, Written
from pipeline.sources.types import has_whole_numbers, holds_any_values, number_type
from wedlm_core.tokenizer import Tokenizer

_MARK, _EDGE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(rf"[{_MARK}{_EDGE}]|\\ufdd[01]|%EF%B7%9[01]")
"""Marks, also as templates write them: ``tojson`` and lists as escapes, ``urlencode`` as bytes."""


def marked(name: str, value: Any, config: RunConfig) -> Any:
    """A value of a row with its special tokens marked, as ``special_tokens_in_text`` says.

    ``name``: of its column, for the message; ``value``: texts, lists and mappings of them.

    Raises:
        RequestError: the setting is "fail", and there is one; or the text has the mark itself.
    """
    if config.special_tokens_in_text == "control":
        return value
    tokens = _tokens(resolved_model(config).tokenizer.special_tokens)
    return _marked(name, value, tokens, config.special_tokens_in_text == "fail")


def is_marked(text: str, config: RunConfig) -> bool:
    """Whether a prompt has marks."""
    return config.special_tokens_in_text != "control" and _MARKS.search(text) is not None


def unmarked(text: str) -> str:
    """The text without marks."""
    return _MARKS.sub("", text)


def encode_marked(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a prompt whose marked special tokens are ordinary text, and others control tokens."""
    ids: list[int] = []
    for place, part in enumerate(_tokens(tokenizer.special_tokens).unmarked.split(text)):
        encode = tokenizer.encode if place % 2 else tokenizer.encode_as_text
        ids += encode(unmarked(part))
    return ids


class _Tokens:
    """The special tokens of a tokenizer, and how to find them.

    Attributes:
        every: matches any of them.
        unmarked: any that is not marked, as a group; splits a text into ordinary and special parts by turns.
        begins, ends: the beginnings and ends of special tokens, which texts next to each other may join to one.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        listed = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
        self.every = re.compile(listed)
        self.unmarked = re.compile(f"((?<!{_MARK})(?:{listed}))")
        self.begins = tuple({token[:i] for token in tokens for i in range(1, len(token))})
        self.ends = tuple({token[i:] for token in tokens for i in range(1, len(token))})


@functools.lru_cache(maxsize=2)
def _tokens(tokens: tuple[str, ...]) -> _Tokens:
    return _Tokens(tokens)


def _marked(name: str, value: Any, tokens: _Tokens, fail: bool) -> Any:
    if isinstance(value, str):
        return _marked_text(name, value, tokens, fail)
    if isinstance(value, JsonText):
        return JsonText(_marked(name, value.text, tokens, fail), _marked(name, value.value, tokens, fail))
    if isinstance(value, Mapping):
        return {_marked(name, k, tokens, fail): _marked(name, v, tokens, fail) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_marked(name, item, tokens, fail) for item in value)
    return value


def _marked_text(name: str, text: str, tokens: _Tokens, fail: bool) -> str:
    if found := _MARKS.search(text):
        raise RequestError(explain(name, found[0], "U+FDD0 and U+FDD1 are no characters", "Take them out."))
    if fail and (found := tokens.every.search(text)):
        rule = 'special_tokens_in_text="fail" allows no special token in a text'
        raise RequestError(explain(name, found[0], rule, 'Take it out, or set "text" to write it as ordinary text.'))
    text = tokens.every.sub(lambda match: "".join(_MARK + letter for letter in match[0]), text)
    before, after = text.startswith(tokens.ends), text.endswith(tokens.begins)
    return _EDGE * before + text + _EDGE * after


class TemplateRenderError(RequestError):
    """The prompt template cannot be rendered for a row."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """A conversation whose answers are to be generated.

    Attributes:
        messages: without the answers: perhaps a system message, then the user's.
        tail: end of each prompt that the template leaves out of later prompts, such as an empty reasoning.
        between: for each turn after the first, the text from the answer before to the prompt's end, without the tail.
    """

    messages: Sequence[dict[str, str]]
    tail: str = ""
    between: tuple[str, ...] = ()


class PromptText(str):
    """The text of a prompt.

    Attributes:
        blank: its row put no visible character into it. It is generated for, and counted.
        chat: it is in the chat template, so it has all of its control tokens.
        turns: the turns that follow, where the row is a conversation.
    """

    blank = chat = False
    turns: Turns | None = None


@dataclass(frozen=True, kw_only=True)
class ChatCells:
    """Values of a row for the chat template in addition to its messages, as in its cells: tools and variables."""

    tools: Any = None
    variables: Any = None


NO_CELLS = ChatCells()


def prompt_of(value: Any, job: Job, cells: ChatCells = NO_CELLS) -> str | list[int]:
    """The text or token ids of one cell of the prompt column.

    Raises:
        RequestError: null, empty, or of a wrong type.
    """
    name = job.prompt_column
    if isinstance(value, Exception):
        raise no_value(f"column {name!r}", value)
    if value is None:
        raise RequestError(explain(name, value, "a prompt is never null", "Fill it in."))
    if job.prompt_kind == "token_ids":
        return checked_ids(name, value)
    if job.prompt_kind == "messages":
        messages = marked(name, conversation(name, value), job.config)
        text = chat_prompt(with_system(messages, job.config.system_prompt), job, cells)
        given = (message.get("content") or message.get("tool_calls") for message in messages)
        return noted(text, *given, chat=True)
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if not isinstance(value, str):
        raise RequestError(explain(name, value, "a prompt is text", "Cast the column to string."))
    return text_prompt(marked(name, value, job.config), job, cells)


def text_prompt(text: str, job: Job, cells: ChatCells = NO_CELLS) -> str:
    """The text to encode: the text itself, or the chat template around it.

    Raises:
        RequestError: empty.
    """
    if not text:
        raise RequestError(explain(job.prompt_column, text, "a prompt is not empty", "Fill it in."))
    if not job.config.chat and job.config.system_prompt is None:
        return noted(text, text, chat=False)
    messages = with_system([{"role": "user", "content": text}], job.config.system_prompt)
    return noted(chat_prompt(messages, job, cells), text, chat=True)


def noted(text: str, *given: Any, chat: bool) -> PromptText:
    """The text of a prompt; ``given``: the parts that its row put into it."""
    found = PromptText(text)
    found.blank = not any(not isinstance(one, str) or one.strip() for one in given if one)
    found.chat = chat
    return found


def chat_prompt(messages: list[Mapping[str, Any]], job: Job, cells: ChatCells = NO_CELLS) -> str:
    """The messages in the model's chat template.

    Raises:
        RequestError: the template refuses them, or a cell is of a wrong type.
    """
    return chat_text(messages, job.config, cells)


def chat_text(messages: Sequence[Mapping[str, Any]], config: RunConfig, cells: ChatCells = NO_CELLS) -> str:
    """:func:`chat_prompt` by the settings of a run."""
    tools = config.tools or None
    if cells.tools is not None:
        name = config.tools_column or "tools"
        tools = marked(name, listed(name, cells.tools), config)
    variables: Mapping[str, Any] = config.chat_template_kwargs
    if cells.variables is not None:
        name = str(config.chat_template_kwargs_column)
        variables = {**variables, **marked(name, mapping(name, cells.variables), config)}
    return resolved_model(config).tokenizer.apply_chat_template(
        messages, tokenize=False, tools=tools, variables=variables or None
    )


def checked_ids(name: str, ids: Any) -> list[int]:
    """The token ids in the column or parameter ``name``.

    Raises:
        RequestError: no list of token ids, or an empty one.
    """
    given, ids = ids, _read_ids(ids)
    if ids is None or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in ids):
        raise RequestError(explain(name, given, "token ids are integers of 0 or more", "Pass a list of integers."))
    if not ids:
        raise RequestError(explain(name, ids, "a prompt has at least one token", "Fill it in."))
    return ids


def _read_ids(ids: Any) -> list[Any] | None:
    """A list, given as such or as JSON text; a fraction that is whole, as another row's fractions make it, is whole."""
    if isinstance(ids, str):
        try:
            ids = json.loads(ids)
        except (ValueError, RecursionError):
            return None
    if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes)):
        return None
    return [int(i) if isinstance(i, float) and i.is_integer() else i for i in ids]


def values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell that has no value (such as text that is not UTF-8) gives the exception instead."""
    try:
        return column.to_pylist()
    except Exception:  # a time zone that is not known is a KeyError
        return [_value(cell) for cell in column]


def _value(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except Exception as error:
        return error


def no_value(name: str, error: Exception) -> RequestError:
    """The error of a row with a cell that has no Python value; ``error``: in place of the value."""
    if isinstance(error, UnicodeDecodeError):
        return RequestError(f"{name}: not valid UTF-8 text ({error}). Re-encode it.")
    return RequestError(
        f"{name}: the cell has no value in Python ({error}). Correct it, or convert the column to text."
    )


def template_values(field: pa.Field, column: pa.ChunkedArray) -> list[Any]:
    """:func:`values` as templates write them: numbers as the input has them, lists and objects in text as JsonText."""
    found = values(column)
    if holds_any_values(field):
        return [_structure(value) if isinstance(value, str) else value for value in found]
    kind = number_type(field.type)
    if kind in _SHORT_FLOATS:
        found = [_shortest(value, _SHORT_FLOATS[kind]) for value in found]
    return [as_written(value) for value in found] if has_whole_numbers(field) else found


_SHORT_FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32}


def _shortest(value: Any, kind: Any) -> Any:
    """A number of 16 or 32 bits, or a list of them, as the fewest digits that name it: 0.1, not 0.10000000149011612."""
    if isinstance(value, list):
        return [_shortest(item, kind) for item in value]
    return float(str(kind(value))) if isinstance(value, float) else value


def as_written(value: Any) -> Any:
    """A number of a column with whole numbers, or a list of numbers: whole ones as integers."""
    if isinstance(value, list):
        return [as_written(item) for item in value]
    if not isinstance(value, float) or not value.is_integer():
        return value
    return MinusZero() if value == 0 and math.copysign(1, value) < 0 else int(value)


def _structure(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return JsonText(text, json.loads(text, parse_int=_number, parse_float=_number))
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> int | float | str:
    """A number; one that Python would round as its digits."""
    found: int | float | Written = JsonReader().read(text)
    return found.text if isinstance(found, Written) else found


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """:func:`values` without the null fields that structs only have because they share their fields.

    A field that is null in every row stays: somebody wrote that null, such as the default of a tool's parameter.
    """
    return [_plain(value, column.type) for value in values(column)]


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, Mapping) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        kept = {k: v for k, v in value.items() if v is not None or pa.types.is_null(types[k])}
        return {name: _plain(item, types[name]) for name, item in kept.items()}
    if isinstance(value, list) and pa.types.is_map(kind):
        return {name: _plain(item, kind.item_type) for name, item in value}
    return [_plain(item, kind.value_type) for item in value] if isinstance(value, list) else value
