"""Scorers: find the answer in a generated text, and compare it with the expected one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

from scipy import stats

Outcome = Literal["correct", "wrong", "no answer", "failed", "unjudged"]
OUTCOMES: tuple[Outcome, ...] = ("correct", "wrong", "no answer", "failed", "unjudged")
"""How a question may end. ``failed``: nothing was generated. ``unjudged``: the row has no expected answer."""

_MARKER = "####"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"(?<![\w.])[-+]?\s?[$€£]?\s?(?:{_DIGITS})(?:[eE][-+]?\d{{1,3}})?(?:\s?/\s?\d+(?![\d.]))?")
_LONGEST = 400
"""Characters of a number: exact arithmetic on a longer one would take long."""
_LETTER = r"[\s(\[*_`\"'$]*([A-Za-z])(?![A-Za-z0-9'])"
_STATED = re.compile(
    rf"(?:####|\\boxed\{{|\b(?:answer|option|choice)\s*(?:is:?|:|=))\s*(?:option|choice)?{_LETTER}", re.I
)
_ALONE = re.compile(r"^[\s(*\[`]*([A-Z])(?:[).:\]*`][^\n]*|\s*)$", re.MULTILINE)


class Verdict(NamedTuple):
    """The outcome for one text, with the answers that were compared, in the scorer's normal form."""

    outcome: Outcome
    answer: str | None
    expected: str | None


def exact(text: str, expected: str) -> Verdict:
    """Compare whole texts; white space at both ends and at the ends of lines does not count."""
    return _verdict(_trimmed(text) or None, _trimmed(expected) or None)


def numeric(text: str, expected: str) -> Verdict:
    """Compare numbers by value: the first one after the last ``####``, else the last one of each text."""
    return _verdict(_last_number(text), _last_number(expected))


def choice(text: str, expected: str) -> Verdict:
    r"""Compare letters of a multiple choice.

    The last stated letter counts (``#### C``, ``\boxed{C}``, "the answer is (C)"), else the last letter that stands
    alone on its line, or begins it and is followed by punctuation (``C. because``). The expected answer is a letter.
    """
    letter = re.fullmatch(r"\W*([A-Za-z])\W*", expected)
    return _verdict(_chosen(text), letter and letter[1].upper())


SCORERS: Mapping[str, Callable[[str, str], Verdict]] = {"exact": exact, "numeric": numeric, "choice": choice}


def _verdict(answer: str | None, expected: str | None) -> Verdict:
    if expected is None:
        return Verdict("unjudged", answer, None)
    if answer is None:
        return Verdict("no answer", None, expected)
    return Verdict("correct" if answer == expected else "wrong", answer, expected)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _last_number(text: str) -> str | None:
    """The value of the number that a worked answer ends with, as an exact fraction in lowest terms."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("{,}", ",")
    _, marker, end = text.rpartition(_MARKER)
    stated = _NUMBER.search(end) if marker else None
    found = stated.group() if stated else next(iter(_NUMBER.findall(text)[::-1]), None)
    if found is None or len(found) > _LONGEST:
        return None
    upper, _, lower = re.sub(r"[$€£,\s]", "", found).partition("/")
    if lower and int(lower) == 0:
        return None
    return str(Fraction(Decimal(upper)) / int(lower or 1))


def _chosen(text: str) -> str | None:
    stated = [found for found in _STATED.finditer(text) if not _is_article(found)]
    if stated:
        return stated[-1][1].upper()
    alone = _ALONE.findall(text)
    return alone[-1] if alone else None


def _is_article(found: re.Match[str]) -> bool:
    """Whether a lone "a" (or "I") is followed by a word in lower case, as in "the answer is a question of taste"."""
    return found[1] in "AaI" and re.match(r"\s+[a-z]", found.string[found.end() :]) is not None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A share, or a difference of shares, and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Questions by outcome."""

    outcomes: Mapping[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    @property
    def questions(self) -> int:
        """Number of all questions."""
        return sum(self.outcomes.values())

    @property
    def judged(self) -> int:
        """Number of questions with an expected answer. Failed ones are among them, and count as not correct."""
        return self.questions - self.outcomes["unjudged"]

    def accuracy(self, confidence: float = 0.95) -> Interval | None:
        """Share of correct answers among the judged ones, with Wilson's interval; None if none was judged."""
        if not self.judged:
            return None
        found = stats.binomtest(self.outcomes["correct"], self.judged)
        low, high = found.proportion_ci(confidence, method="wilson")
        return Interval(value=float(found.statistic), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The same questions answered by two runs.

    Attributes:
        both, only_baseline, only_this, neither: numbers of questions by who answered them correctly.
    """

    both: int
    only_baseline: int
    only_this: int
    neither: int

    def interval(self, confidence: float = 0.95) -> Interval | None:
        """Difference of the accuracies, this run's minus the baseline's, with the interval of a paired t-test.

        None of fewer than two questions.
        """
        count = self.both + self.only_baseline + self.only_this + self.neither
        if count < 2:
            return None
        mean = (self.only_this - self.only_baseline) / count
        variance = ((self.only_this + self.only_baseline) / count - mean**2) / (count - 1)
        if variance == 0:
            return Interval(value=mean, low=mean, high=mean)
        low, high = stats.t.interval(confidence, count - 1, loc=mean, scale=variance**0.5)
        return Interval(value=mean, low=float(low), high=float(high))
