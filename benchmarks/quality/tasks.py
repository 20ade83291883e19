"""Tasks beyond the shipped model's training, so that it errs: longer, larger, with more steps.

Each family draws problems in the words of the training corpus, with numbers or lengths that go beyond its ranges (the
ranges are stated with each), or with words where it never had them. There are two groups. Of the problems in ``exact``
one answer is right, to the letter. Of those in ``open`` many are: the corpus' own checker accepts all texts of its
grammar for this prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wedlm_core.training import corpus
from wedlm_core.training.corpus.medium import add_steps, subtract_steps
from wedlm_core.training.corpus.words import CATEGORIES, NAMES, PLACES, WORDS, with_article

_TRIES = 40


@dataclass(frozen=True, kw_only=True)
class HardProblem:
    """A prompt, with its answer where there is one."""

    family: str
    prompt: str
    answer: str


def _counting(rng: random.Random) -> tuple[str, str]:
    start, items = rng.randint(60, 200), rng.randint(16, 36)  # trained: up to 150, 2 to 28 items
    numbers = range(start, start + items)
    return f"Count from {start} to {numbers[-1]}.", ", ".join(map(str, numbers))


def _countdown(rng: random.Random) -> tuple[str, str]:
    end = rng.randint(50, 110)  # trained: up to 80, 4 to 20 items
    start = end + rng.randint(10, 24)
    return f"Count down from {start} to {end}.", ", ".join(map(str, range(start, end - 1, -1)))


def _copying(rng: random.Random) -> tuple[str, str]:
    words = " ".join(rng.choices(WORDS, k=rng.randint(9, 15)))  # trained: 4 to 12
    return f"Copy: {words}.", words


def _repeating(rng: random.Random) -> tuple[str, str]:
    word, times = rng.choice(WORDS), rng.randint(11, 20)  # trained: 3 to 15
    return f"Repeat {word} {times} times.", ", ".join(f"{i} {word}" for i in range(1, times + 1))


def _reversing(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(WORDS, rng.randint(6, 9))  # trained: 3 to 7
    return f"Reverse: {' '.join(words)}.", " ".join(reversed(words))


def _sorting(rng: random.Random) -> tuple[str, str]:
    numbers = rng.sample(range(10, 100), rng.randint(6, 9))  # trained: 4 to 7
    return f"Sort {' '.join(map(str, numbers))}.", ", ".join(map(str, sorted(numbers)))


def _number_of_words(rng: random.Random) -> tuple[str, str]:
    words = rng.choices(WORDS, k=rng.randint(7, 12))  # trained: 3 to 9
    lines = [f"{i} {word}" for i, word in enumerate(words, 1)]
    return f"How many words: {' '.join(words)}?", "\n".join([*lines, f"Answer: {len(words)}"])


def _equations(rng: random.Random) -> tuple[str, str]:
    a, x, b = rng.randint(5, 9), rng.randint(9, 16), rng.randint(20, 45)  # trained: 2 to 9, 1 to 12, 1 to 30
    product = a * x
    lines = [*subtract_steps(product + b, b), f"{a}x = {product}", f"x = {product} / {a}", f"x = {x}"]
    return f"Solve {a}x + {b} = {product + b}.", "\n".join([*lines, f"Answer: {x}"])


def _addition(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(75, 115), rng.randint(10, 99)  # trained: two digits each
    return f"What is {a} + {b}?", "\n".join([*add_steps(a, b), f"Answer: {a + b}"])


def _subtraction(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(80, 125), rng.randint(11, 79)  # trained: two digits each
    return f"What is {a} - {b}?", "\n".join([*subtract_steps(a, b), f"Answer: {a - b}"])


_NEW_PLACES = ("river", "house", "road", "sea", "hill", "table", "door", "moon", "cloud", "stone")
_NEW_THINGS = ("apple", "pear", "plum", "grape", "cherry", "banana", "eagle", "camel", "coins", "cards")
_NEW_ANIMALS = ("apple", "king", "box", "star", "cloud", "river", "lamp", "bread", "moon", "rose")
_TIMES = ("morning", "evening", "summer", "winter", "spring")


def _lists(rng: random.Random) -> tuple[str, str]:
    count, category, name = rng.randint(5, 8), rng.choice(list(CATEGORIES)), rng.choice(NAMES)  # trained: 3 to 6
    return f"List {count} {category} for {name}.", ""


def _descriptions(rng: random.Random) -> tuple[str, str]:
    return f"Describe the {rng.choice(_NEW_PLACES)} in the {rng.choice(_TIMES)} for {rng.choice(NAMES)}.", ""


def _letters(rng: random.Random) -> tuple[str, str]:
    return f"Write a letter to {rng.choice(NAMES)} about the {rng.choice(_NEW_THINGS)}.", ""


def _stories(rng: random.Random) -> tuple[str, str]:
    animal, place = rng.choice(_NEW_ANIMALS), rng.choice(PLACES)
    return f"Write a short story about {with_article(animal)} in the {place}.", ""


Draw = Callable[[random.Random], tuple[str, str]]
FAMILIES: Mapping[str, Mapping[str, Draw]] = {
    "exact": {
        "counting": _counting,
        "countdown": _countdown,
        "copying": _copying,
        "repeating": _repeating,
        "reversing": _reversing,
        "sorting": _sorting,
        "number_of_words": _number_of_words,
        "equations": _equations,
        "addition": _addition,
        "subtraction": _subtraction,
    },
    "open": {
        "lists": _lists,
        "descriptions": _descriptions,
        "letters": _letters,
        "stories": _stories,
    },
}
"""Group -> family -> draws a prompt and its answer, which is empty where many are right."""


def is_right(family: str, prompt: str, answer: str, text: str) -> bool:
    """Whether ``text`` answers a prompt of a family."""
    if family in FAMILIES["open"]:
        return corpus.FAMILIES[family].check(prompt, answer, text)
    return text.strip() == answer


def draw(group: str, per_family: int) -> Iterator[HardProblem]:
    """At most ``per_family`` problems of each family of a group, all prompts different; deterministic.

    A family with fewer prompts gives all it has.
    """
    for family, make in FAMILIES[group].items():
        rng, seen = random.Random(family), set[str]()
        for _ in range(_TRIES * per_family):
            prompt, answer = make(rng)
            if prompt not in seen and len(seen) < per_family:
                seen.add(prompt)
                yield HardProblem(family=family, prompt=prompt, answer=answer)
