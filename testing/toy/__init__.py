"""The toy problems that the shipped model was trained on: families of tasks, split by a hash of the prompt."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from testing.toy.high import HIGH
from testing.toy.low import LOW
from testing.toy.medium import MEDIUM

Split = Literal["train", "validation", "test"]
Make = Callable[[random.Random], tuple[str, str]]

REGIMES: Mapping[str, Mapping[str, Make]] = {"low": LOW, "medium": MEDIUM, "high": HIGH}
"""Families by the entropy of their answers: each draws ``(prompt, answer)``. In "high", many answers are right."""
FAMILIES: Mapping[str, Make] = {name: make for families in REGIMES.values() for name, make in families.items()}
_TEST_PERCENT, _VALIDATION_PERCENT = 10, 6
_TRIES_PER_PROBLEM = 2000


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One prompt and one correct answer."""

    family: str
    prompt: str
    answer: str


def _draw(family: str, rng: random.Random) -> Problem:
    prompt, answer = FAMILIES[family](rng)
    return Problem(family=family, prompt=prompt, answer=answer)


def split_of(prompt: str) -> Split:
    """The split of a prompt, from its hash alone, so that no prompt is in two splits."""
    percentile = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "little") % 100
    if percentile < _TEST_PERCENT:
        return "test"
    return "validation" if percentile < _TEST_PERCENT + _VALIDATION_PERCENT else "train"


def stream(seed: int, split: Split, weights: Mapping[str, float]) -> Iterator[Problem]:
    """An endless stream of problems of ``split``, with families drawn by ``weights``; deterministic for a seed."""
    rng = random.Random(f"{seed}/{split}")
    names, shares = list(weights), list(weights.values())
    while True:
        family = rng.choices(names, shares)[0]
        problem = _draw(family, rng)
        while split_of(problem.prompt) != split:
            problem = _draw(family, rng)
        yield problem


def distinct(family: str, split: Split, count: int, seed: int = 0) -> list[Problem]:
    """Up to ``count`` problems of one family and split with distinct prompts; fewer if there are fewer."""
    rng = random.Random(f"{seed}/{family}/{split}")
    found: dict[str, Problem] = {}
    for _ in range(count * _TRIES_PER_PROBLEM):
        if len(found) == count:
            break
        problem = _draw(family, rng)
        if split_of(problem.prompt) == split:
            found.setdefault(problem.prompt, problem)
    return list(found.values())
