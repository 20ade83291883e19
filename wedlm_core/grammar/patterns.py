"""Regexes as Python has them, said in the syntax of the backend."""

from __future__ import annotations

import re

__all__ = ["pattern_fault", "with_python_classes"]

_CLASSES = {"w": r"\p{L}\p{N}_", "d": "0-9"}
_EXCLUDED = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}"}
_SET_OPERATIONS = ("&&", "--", "~~", "||")


def with_python_classes(regex: str) -> str:
    r"""The regex with ``\w`` and ``\d`` as both Python and the backend have them; digits are those of ASCII."""
    out, inside, negated, place = [], False, False, 0
    while place < len(regex):
        char, following = regex[place], regex[place + 1 : place + 2]
        name = following.lower()
        if char == "\\" and name in _CLASSES:
            if following.isupper():
                out.append(f"[^{_EXCLUDED[name]}]")
            elif inside:
                out.append((_EXCLUDED if negated else _CLASSES)[name])
            else:
                out.append(f"[{_CLASSES[name]}]")
            place += 2
            continue
        if char == "\\":
            out.append(char + following)
            place += 2
            continue
        if char == "[" and not inside:
            inside, negated = True, following == "^"
        elif char == "]":
            inside = False
        out.append(char)
        place += 1
    return "".join(out)


def pattern_fault(pattern: str) -> str | None:
    """Why a validator that follows Python may read a pattern in another way than the backend; None if it does not."""
    bare = re.sub(r"\\.", "xx", pattern, flags=re.DOTALL)
    for members in re.findall(r"\[\^?\]?([^\]]*)", bare):
        if "[" in members or any(operation in members for operation in _SET_OPERATIONS):
            return "sets inside of sets are not the same in all validators"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"Python cannot read it ({error})"
    return None
