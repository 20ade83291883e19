"""Low-entropy families: the prompt determines every token of the answer, most of them many tokens ahead."""

from __future__ import annotations

import random
import string

from testing.toy.words import WORDS


def _counting(rng: random.Random) -> tuple[str, str]:
    start = rng.randint(1, 150)
    items = rng.randint(2, 28)
    numbers = range(start, start + items)
    return f"Count from {start} to {numbers[-1]}.", ", ".join(map(str, numbers))


def _countdown(rng: random.Random) -> tuple[str, str]:
    end = rng.randint(1, 80)
    start = end + rng.randint(3, 19)
    return f"Count down from {start} to {end}.", ", ".join(map(str, range(start, end - 1, -1)))


def _copying(rng: random.Random) -> tuple[str, str]:
    words = " ".join(rng.choices(WORDS, k=rng.randint(4, 12)))
    return f"Copy: {words}.", words


def _repeating(rng: random.Random) -> tuple[str, str]:
    word, times = rng.choice(WORDS), rng.randint(3, 15)
    return f"Repeat {word} {times} times.", ", ".join(f"{i} {word}" for i in range(1, times + 1))


def _pattern(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(WORDS, 2)
    times = rng.randint(3, 9)
    lines = (f"{i} {first} and {second}" for i in range(1, times + 1))
    return f"Repeat {first} and {second} {times} times.", ", ".join(lines)


def _bullets(rng: random.Random) -> tuple[str, str]:
    words = rng.choices(WORDS, k=rng.randint(4, 9))
    return f"Make a list: {', '.join(words)}.", "\n".join(f"- {word}" for word in words)


def _alphabet(rng: random.Random) -> tuple[str, str]:
    start = rng.randrange(0, 22)
    end = rng.randrange(start + 3, 26)
    letters = string.ascii_lowercase if rng.random() < 0.5 else string.ascii_uppercase
    return f"List the letters from {letters[start]} to {letters[end]}.", ", ".join(letters[start : end + 1])


LOW = {
    "counting": _counting,
    "countdown": _countdown,
    "copying": _copying,
    "repeating": _repeating,
    "pattern": _pattern,
    "bullets": _bullets,
    "alphabet": _alphabet,
}
