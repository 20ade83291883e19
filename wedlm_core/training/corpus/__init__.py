"""The procedural corpus of the shipped model: families of tasks with checkers, split by a hash of the prompt.

Knows problems as text. Knows nothing of tokens, tensors or models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from wedlm_core.errors import ConfigError, explain
from wedlm_core.training.corpus.high import HIGH
from wedlm_core.training.corpus.low import LOW
from wedlm_core.training.corpus.medium import MEDIUM
from wedlm_core.training.corpus.word_problem import SPLITS, Family, Problem, Split, split_of

__all__ = ["FAMILIES", "REGIMES", "SPLITS", "Family", "Problem", "Split", "check", "distinct", "split_of", "stream"]

FAMILIES: Mapping[str, Family] = {family.name: family for family in (*LOW, *MEDIUM, *HIGH)}
REGIMES = ("low", "medium", "high")
"""How predictable answers are, by their entropy under a trained model."""

_TRIES_PER_PROBLEM = 2000


def check(problem: Problem, text: str) -> bool:
    """Whether ``text`` is a correct answer to ``problem``."""
    return FAMILIES[problem.family].check(problem.prompt, problem.answer, text)


def stream(seed: int, split: Split, weights: Mapping[str, float]) -> Iterator[Problem]:
    """An endless stream of problems of ``split``, with families drawn by ``weights``; deterministic for a seed.

    Raises:
        ConfigError: a family in ``weights`` does not exist.
    """
    unknown = sorted(set(weights) - set(FAMILIES))
    if unknown:
        raise ConfigError(explain("weights", unknown, f"families are {sorted(FAMILIES)}", "Correct the recipe."))
    rng = random.Random(f"{seed}/{split}")
    names, shares = list(weights), list(weights.values())
    while True:
        family = FAMILIES[rng.choices(names, shares)[0]]
        problem = family.draw(rng)
        while split_of(problem.prompt) != split:
            problem = family.draw(rng)
        yield problem


def distinct(family: str, split: Split, count: int, seed: int = 0) -> list[Problem]:
    """Up to ``count`` problems of one family and split with distinct prompts; fewer if there are fewer."""
    rng = random.Random(f"{seed}/{family}/{split}")
    found: dict[str, Problem] = {}
    for _ in range(count * _TRIES_PER_PROBLEM):
        if len(found) == count:
            break
        problem = FAMILIES[family].draw(rng)
        if split_of(problem.prompt) == split:
            found.setdefault(problem.prompt, problem)
    return list(found.values())
