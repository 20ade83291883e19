"""Which choice a text picks: the letter of a multiple-choice answer, however it is wrapped."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["LETTERS", "chosen_letter", "letter_of"]

LETTERS = "ABCDEFGHIJ"

_WRAPPED = r"(?:\\boxed\{{\s*(?:\\text\{{)?|[(\[*_`\s\"'$])*(?P<letter>[{letters}])(?![A-Za-z0-9'])"
_STATED = r"(?:####|answer\s*(?:is|:|=)|(?:option|choice)\s*(?:is|:)?)\s*(?:option|choice)?\s*:?"


def chosen_letter(text: str, letters: str = LETTERS[:4]) -> str | None:
    r"""The letter that a text chooses, in upper case; None where it chooses none.

    What is stated counts first ("the answer is (C)", "#### C", "\boxed{C}"), the last statement of several; else the
    letter that the text begins with; else one that stands alone on a line. An "A" that goes on as a sentence is an
    article and no choice.
    """
    upper = letters.upper()
    wrapped = _WRAPPED.format(letters=upper + upper.lower())
    stated = [m for m in re.finditer(_STATED + wrapped, text, re.IGNORECASE) if not _is_article(m)]
    stated += re.finditer(r"\\boxed\{\s*(?:\\text\{)?\(?" + _letter(upper) + r"\)?\s*\}", text)
    if stated:
        return max(stated, key=lambda m: m.start("letter"))["letter"].upper()
    first = re.match(_WRAPPED.format(letters=upper), text)
    if first is not None and not _is_article(first):
        return first["letter"]
    alone = re.findall(rf"^[\s(*\[`]*([{upper}])[\s).*\]`:]*$", text, re.MULTILINE)
    return alone[-1] if alone else None


def _letter(letters: str) -> str:
    return f"(?P<letter>[{letters}])"


def _is_article(found: re.Match[str]) -> bool:
    """Whether a lone "A" (or "I") is followed by a word in lower case, as at the beginning of a sentence."""
    return found["letter"] in "AaI" and re.match(r"\s+[a-z]", found.string[found.end() :]) is not None


def letter_of(answer: object, labels: Sequence[object]) -> str | None:
    """The letter of a data set's answer: an index, a number as text, a label, or a letter; None where it is none.

    Args:
        answer: as the data set has it.
        labels: the labels of the choices in order, where they have some (such as ``["1", "2", "3", "4"]``).
    """
    names = [str(label).strip() for label in labels]
    if isinstance(answer, bool):
        return None
    if isinstance(answer, int):
        place = answer
    else:
        text = str(answer).strip()
        if text in names:
            place = names.index(text)
        elif text.isdecimal():
            place = int(text)
        elif len(text) == 1 and text.upper() in LETTERS:
            place = LETTERS.index(text.upper())
        else:
            return None
    return LETTERS[place] if 0 <= place < min(len(names) or len(LETTERS), len(LETTERS)) else None
