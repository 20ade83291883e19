"""Medium-entropy families: one correct answer, which takes work. The answer shows it: tens first, then ones."""

from __future__ import annotations

import random

from testing.toy.words import CITIES, ITEMS, NAMES, WORDS

_SHE = frozenset({"Anna", "Clara", "Emma", "Grace", "Ida", "Kate", "Mia", "Olga", "Rosa", "Vera"})


def _add_steps(a: int, b: int) -> list[str]:
    """Lines of a worked sum of two two-digit numbers: tens, ones, total."""
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return [
        f"{a // 10 * 10} + {b // 10 * 10} = {tens}",
        f"{a % 10} + {b % 10} = {ones}",
        f"{tens} + {ones} = {a + b}",
    ]


def _subtract_steps(a: int, b: int) -> list[str]:
    """Lines of a worked difference: subtract the tens of ``b``, then its ones."""
    lines, left = [], a
    for part in (b // 10 * 10, b % 10):
        if part:
            lines.append(f"{left} - {part} = {left - part}")
            left -= part
    return lines


def _answer(lines: list[str], value: int) -> str:
    return "\n".join([*lines, f"Answer: {value}"])


def _addition(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return f"What is {a} + {b}?", _answer(_add_steps(a, b), a + b)


def _subtraction(rng: random.Random) -> tuple[str, str]:
    a, b = sorted(rng.sample(range(11, 100), 2), reverse=True)
    return f"What is {a} - {b}?", _answer(_subtract_steps(a, b), a - b)


def _equations(rng: random.Random) -> tuple[str, str]:
    a, x, b = rng.randint(2, 9), rng.randint(1, 12), rng.randint(1, 30)
    product = a * x
    lines = [*_subtract_steps(product + b, b), f"{a}x = {product}", f"x = {product} / {a}", f"x = {x}"]
    return f"Solve {a}x + {b} = {product + b}.", _answer(lines, x)


def _word_problems(rng: random.Random) -> tuple[str, str]:
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    pronoun = "She" if name in _SHE else "He"
    if rng.random() < 0.5:
        a, b = rng.randint(10, 89), rng.randint(10, 89)
        prompt = f"{name} has {a} {item}. {pronoun} buys {b} more. How many {item} does {pronoun.lower()} have?"
        return prompt, _answer([f"{a} + {b}", *_add_steps(a, b)], a + b)
    a, b = sorted(rng.sample(range(11, 100), 2), reverse=True)
    prompt = f"{name} has {a} {item}. {pronoun} sells {b}. How many {item} are left?"
    return prompt, _answer([f"{a} - {b}", *_subtract_steps(a, b)], a - b)


def _sorting(rng: random.Random) -> tuple[str, str]:
    numbers = rng.sample(range(10, 100), rng.randint(4, 7))
    return f"Sort {' '.join(map(str, numbers))}.", ", ".join(map(str, sorted(numbers)))


def _extraction(rng: random.Random) -> tuple[str, str]:
    name, age, city, item = rng.choice(NAMES), rng.randint(10, 99), rng.choice(CITIES), rng.choice(ITEMS)
    sentence = rng.choice((
        f"{name} is {age}, lives in {city} and likes {item}.",
        f"In {city} lives {name}, who is {age} and likes {item}.",
    ))  # fmt: skip
    return f"To JSON: {sentence}", f'{{"name": "{name}", "age": {age}, "city": "{city}", "likes": "{item}"}}'


def _reversing(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(WORDS, rng.randint(3, 7))
    return f"Reverse: {' '.join(words)}.", " ".join(reversed(words))


def _tally(rng: random.Random) -> tuple[str, str]:
    words = rng.choices(WORDS, k=rng.randint(3, 9))
    lines = [f"{i} {word}" for i, word in enumerate(words, 1)]
    return f"How many words: {' '.join(words)}?", _answer(lines, len(words))


MEDIUM = {
    "addition": _addition,
    "subtraction": _subtraction,
    "equations": _equations,
    "word_problems": _word_problems,
    "sorting": _sorting,
    "extraction": _extraction,
    "reversing": _reversing,
    "tally": _tally,
}
