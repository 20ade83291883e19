"""Regexes as Python has them, said in the syntax of the backend."""

from __future__ import annotations

import re
import unicodedata

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
