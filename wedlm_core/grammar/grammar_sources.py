"""Grammars for llguidance, from a user's structured outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from wedlm_core.errors import RequestError, explain, first_line
from wedlm_core.grammar.patterns import with_python_classes
from wedlm_core.grammar.schemas import check_schema
from wedlm_core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_ESCAPES = 'nrbtf\\"'
"""Characters after a backslash in JSON texts. Without ``u`` and ``/`` no text has two forms, so a key cannot
pass for another one than it is read as."""


def grammar_text(wanted: StructuredOutputs, special_ids: Mapping[str, int]) -> str:
    """The grammar as JSON text, in llguidance's own format.

    Args:
        wanted: the form of the output.
        special_ids: ids of the special tokens by their text: bytes do not spell these.

    Raises:
        RequestError: a schema that would not be enforced.
    """
    answer = _answer(wanted)
    if wanted.after is None:
        return json.dumps({"grammars": [answer]})
    return json.dumps({"grammars": [{"lark_grammar": _after(wanted.after, special_ids)}, answer | {"name": "answer"}]})


def _after(tag: str, special_ids: Mapping[str, int]) -> str:
    """Free text up to the first tag, whitespace, then the answer."""
    if tag in special_ids:
        return f"start: BEFORE <[{special_ids[tag]}]> SPACE @answer\nBEFORE: /[\\s\\S]*/\nSPACE: /\\s{{0,8}}/"
    return f"start: before SPACE @answer\nbefore[lazy]: /[\\s\\S]*{_literal(tag)}/\nSPACE: /\\s{{0,8}}/"


def _literal(text: str) -> str:
    """A regex, inside of slashes, that matches one text."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def _answer(wanted: StructuredOutputs) -> dict[str, Any]:
    if wanted.is_json:
        return _of_schema(wanted)
    if wanted.regex is not None:
        return _first(LLMatcher.grammar_from_regex(with_python_classes(wanted.regex)))
    if wanted.choice is not None:
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        return {"lark_grammar": f"start: CHOICE\nCHOICE: {texts}"}  # one lexeme: thousands of rules would be too many
    return {"lark_grammar": _as_lark(wanted.grammar or "", wanted.whitespace_pattern)}


def _first(grammar: str) -> dict[str, Any]:
    return json.loads(grammar)["grammars"][0]


def _of_schema(wanted: StructuredOutputs) -> dict[str, Any]:
    schema = check_schema(wanted.schema or {})
    options: JsonCompileOptions = {"json_allowed_escapes": _ESCAPES, "json_allow_general_unicode_escapes": False}
    if wanted.whitespace_pattern is None:
        options["whitespace_flexible"] = False
        options["item_separator"], options["key_separator"] = wanted.separators
    else:
        options["whitespace_pattern"] = wanted.whitespace_pattern
    text = json.dumps(schema, ensure_ascii=False)
    return _first(LLMatcher.grammar_from_json_schema(text, overrides=options))


def _as_lark(grammar: str, whitespace_pattern: str | None = None) -> str:
    """A grammar in Lark's syntax as it is, one in GBNF translated."""
    grammar = _with_canonical_schemas(grammar, whitespace_pattern)
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # the translator raises its parser's errors
        rule = f"looks like GBNF and cannot be read as such ({first_line(error)})"
        raise RequestError(explain("structured_outputs.grammar", grammar, rule, "Correct it, or use Lark.")) from error


def _with_canonical_schemas(grammar: str, whitespace_pattern: str | None) -> str:
    """A grammar whose JSON schemas are enforced or refused as others are."""
    made, end = list[str](), 0
    spaces = {} if whitespace_pattern is None else {"whitespace_pattern": whitespace_pattern}
    for found in re.finditer(r"%json\s*(?=\{)", grammar):
        try:
            schema, stop = json.JSONDecoder().raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            continue  # the library names the fault and its place
        options = {"x-guidance": {"json_allowed_escapes": _ESCAPES, **spaces}}
        made += [grammar[end : found.end()], json.dumps(options | check_schema(schema), ensure_ascii=False)]
        end = stop
    return "".join((*made, grammar[end:]))
