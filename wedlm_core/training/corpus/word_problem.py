"""Problem and Family: a task with its checker, and the split that a problem belongs to."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Regime = Literal["low", "medium", "high"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

_TEST_PERCENT = 10
_VALIDATION_PERCENT = 6


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One prompt and one correct answer. ``unique``: there is no other correct answer."""

    family: str
    regime: Regime
    prompt: str
    answer: str
    unique: bool


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of task.

    Attributes:
        name: name of the family in recipes and tables.
        regime: how predictable its answers are.
        unique: whether a prompt has exactly one correct answer.
        make: draws ``(prompt, answer)`` from a random generator.
        check: ``(prompt, answer, text) -> bool``: is ``text`` correct? If ``unique``, ``answer`` is the
            correct answer; otherwise it is ignored and a validator checks ``text``.
    """

    name: str
    regime: Regime
    unique: bool
    make: Callable[[random.Random], tuple[str, str]]
    check: Callable[[str, str, str], bool]

    def draw(self, rng: random.Random) -> Problem:
        """A random problem of this family, of any split."""
        prompt, answer = self.make(rng)
        return Problem(family=self.name, regime=self.regime, prompt=prompt, answer=answer, unique=self.unique)


def exact(prompt: str, answer: str, text: str) -> bool:
    """Exact match, ignoring surrounding white space."""
    return text.strip() == answer


def split_of(prompt: str) -> Split:
    """The split of a prompt, from its hash alone, so that no prompt is in two splits."""
    percentile = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "little") % 100
    if percentile < _TEST_PERCENT:
        return "test"
    return "validation" if percentile < _TEST_PERCENT + _VALIDATION_PERCENT else "train"
