"""Special tokens in the texts of rows, such as ``<|im_end|>``: control tokens, ordinary text, or a failure of the row.

Texts become parts of prompts, in which the special tokens of a template are control tokens in any case. To tell the two
apart, a noncharacter (a mark) is put before each letter of a special token in a row's text, and taken out when the
prompt is encoded. Another one keeps texts next to each other from joining to a special token.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.codec import RequestError, explain
from pipeline.config import RunConfig
from pipeline.prompts.model_files import resolved_model
from wedlm_core.tokenizer import Tokenizer

_MARK, _EDGE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(rf"[{_MARK}{_EDGE}]|\\ufdd[01]|%EF%B7%9[01]")
"""Marks, also as templates write them: ``tojson`` and lists as escapes, ``urlencode`` as bytes."""


def marked(name: str, value: Any, config: RunConfig) -> Any:
    """A value of a row with its special tokens marked, as ``special_tokens_in_text`` says.

    Args:
        name: of its column, for the message.
        value: texts, lists and mappings of them.
        config: of the run.

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
