"""Causes of failed rows: messages without the values of single rows, so that rows are counted by their remedy.

A message has the form ``name=value: rule. remedy`` of :func:`wedlm_core.errors.explain`, or has no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OTHER = "other causes; the dead letters have them all"
"""The cause of rows whose own cause is not counted separately."""
MOST_CAUSES = 100
_LONGEST, _ENDS = 600, (400, 190)
"""Characters of an example's message, and of its begin and end if it is longer."""
_LONGEST_ID = 80
_NAME = re.compile(r"[^=:\n]{1,80}?=")
_CUT_VALUE = re.compile(r".{0,400}?\.\.\. \(\d+ (?:characters|values)\)(?=: )")
_LITERAL = re.compile(r"(?<!\w)(['\"])(?:\\.|(?!\1).)*?\1(?!\w)")
_BRACKETS = re.compile(r"[\[{(][^\[\]{}()]*[\]})]")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"['\"][A-Za-z_][\w.]{0,39}['\"]")
_SENTENCE = re.compile(r"\. (?=[A-Z])")
_DEPTH = 8
_BLANK = "\0"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why rows failed.

    Attributes:
        text: the rule that the rows break.
        remedy: as sentences; empty if the message has none.
        rows: how many failed for it.
        example: the id of one of them, with its value.
    """

    text: str
    remedy: str
    rows: int
    example: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        parts = [f"{rows}: {self.text}.", self.remedy, f"For example {self.example}." if self.example else ""]
        return " ".join(part for part in parts if part)


def cause_of(message: str) -> str:
    """The cause that a message has in common with those of other rows: values are left out, and numbers are ``N``."""
    text, _, remedy = _parts(example_of("", message).partition("\n")[2])
    literals = _LITERAL.sub(lambda own: own[0] if _WORD.fullmatch(own[0]) else "...", text)
    return " ".join(part for part in (f"{_NUMBER.sub('N', literals)}.", remedy) if part)


def example_of(row_id: str, message: str) -> str:
    """A failed row as an example: its id and its message, shortened, on a line each."""
    line = " ".join(message.split())
    if len(line) > _LONGEST:
        line = f"{line[: _ENDS[0]]}...{line[-_ENDS[1] :]}"
    own = " ".join(row_id.split())
    return f"{own if len(own) <= _LONGEST_ID else own[:_LONGEST_ID] + '...'}\n{line}"


def causes_of(counts: Mapping[str, int], examples: Mapping[str, str]) -> list[Cause]:
    """The causes, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
    return [_cause(cause, rows, examples.get(cause, "")) for cause, rows in ordered]


def described(causes: Sequence[Cause]) -> str:
    """The causes in one sentence: ``12 rows: the prompt is empty; 3 rows: ...``."""
    return "; ".join(f"{own.rows} rows: {own.text}" for own in causes)


def added_causes(counts: Mapping[str, int], more: Mapping[str, int], most: int = MOST_CAUSES) -> Mapping[str, int]:
    """The sums of both; causes beyond the ``most`` that are known first count as :data:`OTHER`."""
    sums = dict(counts)
    for cause, rows in more.items():
        name = cause if cause in sums or len(sums) < most else OTHER
        sums[name] = sums.get(name, 0) + rows
    return sums


def _cause(cause: str, rows: int, example: str) -> Cause:
    row_id, _, message = example.partition("\n")
    if not message:
        return Cause(text=cause.rstrip("."), remedy="", rows=rows, example=row_id)
    text, value, remedy = _parts(message)
    return Cause(text=text, remedy=remedy, rows=rows, example=f"row {row_id}: {value}" if value else f"row {row_id}")


def _parts(message: str) -> tuple[str, str, str]:
    """Of a message the rule with its subject, the subject with its value, and the remedy."""
    masked = _masked(message)
    name, value, start = "", "", 0
    if (found := _NAME.match(masked)) is not None:
        cut = _CUT_VALUE.match(message, found.end())
        end = masked.find(": ", found.end() if cut is None else cut.end())
        if end > 0:
            name, value, start = f"{message[: found.end() - 1]}: ", message[:end], end + 2
    stop = _SENTENCE.search(masked, start)
    if stop is None:
        return (name + message[start:]).rstrip("."), value, ""
    return name + message[start : stop.start()], value, message[stop.end() :]


def _masked(message: str) -> str:
    """The message with its literals and brackets blanked out, of the same length."""

    def blank(own: re.Match[str]) -> str:
        return _BLANK * len(own[0])

    text = _LITERAL.sub(blank, message)
    for _ in range(_DEPTH):
        text, count = _BRACKETS.subn(blank, text)
        if not count:
            break
    return text
