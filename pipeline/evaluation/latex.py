r"""Answers in LaTeX: what stands in the last ``\boxed{}``, and whether two of them say the same.

Two answers are the same if they have the same value (numbers, fractions), the same elements (tuples, intervals, sets),
or the same text once all that changes nothing is left out. This is a rule of spelling, not of algebra: ``x+1`` and
``1+x`` differ.
"""

from __future__ import annotations

import re

from pipeline.evaluation.numbers import as_number

__all__ = ["boxed", "plain_latex", "same_latex"]

_LONGEST = 2000
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\s+")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname)\s*\{([^{}]*)\}")
_UNITS = re.compile(
    r"(?:\\text\{\s*)?(?:degrees?|dollars?|cents?|units?|square units?|cubic units?|inch(?:es)?|feet|ft|cm|meters?|"
    r"miles?|hours?|minutes?|seconds?|points?|percent|ways?|km|kg|grams?)(?:\^?\{?[23]\}?)?\s*\}?\s*$",
    re.IGNORECASE,
)


def boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` (or ``\boxed 5``); None if there is none, or its brace stays open."""
    found = list(_BOX.finditer(text))
    if not found:
        return None
    rest = text[found[-1].end() :]
    if not rest.startswith("{"):
        bare = re.match(r"[^\s$.,]+", rest)
        return bare.group() if bare else None
    depth = 0
    for place, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[1:place].strip()
    return None


def same_latex(one: str | None, other: str | None) -> bool:
    """Whether two answers say the same."""
    if one is None or other is None or max(len(one), len(other)) > _LONGEST:
        return False
    first, second = plain_latex(one), plain_latex(other)
    return first != "" and _same(first, second)


def _same(first: str, second: str) -> bool:
    if first == second:
        return True
    values = _value(first), _value(second)
    if None not in values:
        return values[0] == values[1]
    ends = first[:1] + first[-1:], second[:1] + second[-1:]
    if ends[0] == ends[1] and ends[0] in ("()", "[]", "(]", "[)", "{}"):
        parts, others = _elements(first[1:-1]), _elements(second[1:-1])
        if len(parts) == len(others) > 1:
            if ends[0] == "{}":
                parts, others = sorted(parts), sorted(others)
            return all(_same(a, b) for a, b in zip(parts, others, strict=True))
    return False


def plain_latex(text: str) -> str:
    """One spelling of an answer: without spaces, sizes, units, dollars and names in front of an equals sign."""
    text = text.strip().strip("$").strip().rstrip(".")
    text = text.replace("\\{", "{").replace("\\}", "}") if text.startswith("\\{") else text
    text = re.sub(r"\\(?:left|right|displaystyle|textstyle|limits)(?![a-zA-Z])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).replace("\\cdot", "*").replace("\\times", "*")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", "", text)
    text = text.replace("\\$", "").replace("\\%", "").replace("%", "").replace("{,}", ",").replace("\u2212", "-")
    text = _UNITS.sub("", text) if _UNITS.search(text) and re.search(r"\d", text) else text
    text = _TEXT.sub(lambda m: m[1].strip(), text)
    text = _SPACES.sub("", text)
    text = re.sub(r"^[a-zA-Z]\w{0,3}=(?=.)|^[a-zA-Z]\\in(?=[\[({])", "", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\d)(?=\{)", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\{[^{}]*\})(\w)", r"\1{\2}", text)
    text = re.sub(r"^(-?)(\w+)/(\w+)$", r"\1\\frac{\2}{\3}", text)
    return text.replace("\\infty", "oo").replace("\\pi", "pi").replace("\u03c0", "pi").rstrip(".")


def _value(text: str) -> object:
    """The number that a plain answer is: a decimal, or a fraction of two; None otherwise."""
    found = re.fullmatch(r"(-?)(\d*)\\frac\{(-?)(\d{1,100})\}\{(-?)(\d{1,100})\}", text)
    if found is None:
        return as_number(text)
    sign, whole, upper_sign, upper, lower_sign, lower = found.groups()
    if int(lower) == 0:
        return None
    fraction = as_number(f"{upper_sign}{upper}/{lower}")
    if fraction is None:
        return None
    fraction = -fraction if lower_sign else fraction
    if whole:
        fraction = int(whole) + fraction
    return -fraction if sign else fraction


def _elements(text: str) -> list[str]:
    """Parts between commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
