"""Regexes as Python has them, said in the syntax of the backend; and names of fields that match them."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache, lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

# The backend has the letters of Unicode 16; a Python whose Unicode is older takes those that came later for no letters.
_AGE = min(float(unicodedata.unidata_version.rpartition(".")[0]), 16.0)
_CLASSES = {"w": rf"[\p{{L}}\p{{N}}_&&\p{{Age:{_AGE}}}]", "d": "0-9"}
_EXCLUDED = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}"}

# Characters that have no short form in JSON: the backend leaves them out of texts. In sets it leaves out them alone.
_UNSPELLED = r"[\x00-\x07\x0b\x0e-\x1f\x7f]|\\(?:[av]|(?:x|u00|U000000)(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF]))"
_ESCAPE = r"\\[^<>\x00-\x07\x0b\x0e-\x1f\x7f]"  # the backend or Python refuses the syntax that only the other knows
_SHARED = re.compile(
    rf"""(?:
        (?!{_UNSPELLED})(?:{_ESCAPE}|[^\\(\[{{*+?])
      | \[ (?!\^?\]|(?:{_UNSPELLED}|-)+\]) \^? (?:(?!&&|--|~~|\|\|)(?:{_ESCAPE}|[^\\\[\]]))+ \]
      | \((?:\?(?:[:=!]|<[=!]|P<\w+>)|(?!\?))
      | (?:[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})\??(?!\+)
    )*""",
    re.VERBOSE,
)
"""Patterns that Python and the backend read in the same way, or one of them refuses.

They have no flags, no possessive repetitions, no sets in sets and no brace that is a letter to one of them.
"""


_TOKEN = re.compile(r"\\.|\[\^?|\]", re.DOTALL)


def with_python_classes(regex: str) -> str:
    r"""The regex with ``\w`` and ``\d`` as both Python and the backend have them; digits are those of ASCII."""
    inside = negated = False

    def token(found: re.Match[str]) -> str:
        nonlocal inside, negated
        text = found[0]
        name = text[1:].lower()
        if text[0] == "[" and not inside:
            inside, negated = True, text == "[^"
        elif text == "]":
            inside = negated = False
        elif text[0] == "\\" and name in _CLASSES:
            if text[1:].isupper():
                return f"[^{(_CLASSES if negated else _EXCLUDED)[name]}]"
            return (_EXCLUDED if negated else _CLASSES)[name] if inside else f"[{_CLASSES[name]}]"
        return text

    return _TOKEN.sub(token, regex)


def pattern_fault(pattern: str) -> str | None:
    """Why a validator that follows Python may read a pattern in another way than the backend; None if it does not."""
    if rest := _SHARED.sub("", pattern, count=1):
        return f"the grammar library and validators may read {rest[:16]!r} in different ways"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"Python cannot read it ({error})"
    return None


def closed_names(schema: dict[str, Any]) -> dict[str, Any]:
    """An object's schema without ``patternProperties`` where ``properties`` has all names that they match.

    The backend would expect one more name that no text spells.
    """
    others = schema.get("additionalProperties", True)
    by_pattern = schema["patternProperties"]
    named = dict(schema.get("properties", {}))
    for name in schema.get("required", ()):
        named.setdefault(name, others if not any(matches(pattern, name) for pattern in by_pattern) else True)
    allowed = tuple((pattern, part is not False) for pattern, part in by_pattern.items())
    if _has_more(tuple(named), allowed, others is not False):
        return schema
    for name, part in named.items():
        found = [other for pattern, other in by_pattern.items() if matches(pattern, name)]
        named[name] = {"allOf": [part, *found]} if found else part
    rest = {keyword: value for keyword, value in schema.items() if keyword != "patternProperties"}
    return rest | {"properties": named, "additionalProperties": False}


@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, as the backend reads it; false where it does not read it."""
    return _taken({"type": "string", "pattern": pattern}, json.dumps(name, ensure_ascii=False)) or False


@lru_cache(maxsize=1024)
def _has_more(names: tuple[str, ...], patterns: tuple[tuple[str, bool], ...], is_open: bool) -> bool:
    """Whether an object may have a field of another name. True where the backend cannot tell."""
    properties = dict.fromkeys(names, False)
    schema = {"type": "object", "minProperties": 1, "properties": properties, "patternProperties": dict(patterns),
              "additionalProperties": is_open}  # fmt: skip
    return _taken(schema, '{"') is not False


def _taken(schema: dict[str, Any], text: str) -> bool | None:
    """Whether a text is, or begins, a value of a schema; None where the backend does not compile it."""
    made = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    matcher = LLMatcher(_bytes(), made, log_level=0)
    return None if matcher.is_error() else bool(matcher.consume_tokens(list(text.encode())))


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")
