"""High-entropy families: a prompt has many correct answers."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testing.toy.words import ANIMALS, CATEGORIES, NAMES, PLACES, THINGS, WORDS, with_article

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def _pick(rng: random.Random, options: Sequence[str]) -> str:
    """Draw an option with weights 1, 1/2, 1/3, ...: many are possible, one is the most likely."""
    return rng.choices(options, weights=[1 / (i + 1) for i in range(len(options))])[0]


@dataclass(frozen=True, kw_only=True)
class _Grammar:
    """Sentences with alternatives, and placeholders ``{name}``: free choices, or values that the prompt fixes.

    Attributes:
        sentences: each a tuple of alternatives.
        choices: words of each free placeholder; every occurrence is drawn again.
        joiner: text between sentences.
    """

    sentences: tuple[tuple[str, ...], ...]
    choices: Mapping[str, Sequence[str]]
    joiner: str = " "

    def sample(self, rng: random.Random, bound: Mapping[str, str]) -> str:
        """A random text; ``bound`` holds the values that the prompt fixes."""

        def fill(match: re.Match[str]) -> str:
            name = match.group(1)
            return bound[name] if name in bound else _pick(rng, self.choices[name])

        return self.joiner.join(_PLACEHOLDER.sub(fill, _pick(rng, alternatives)) for alternatives in self.sentences)


_FEELINGS = ("happy", "tired", "proud", "brave", "calm")
_ADJECTIVES = ("little", "old", "clever", "brave", "shy", "happy")
_TIMES = ("morning", "evening", "summer", "winter", "spring")

_STORY = _Grammar(
    sentences=(
        ("Once upon a time there was a {adjective} {animal} who lived in the {place}.",),
        (
            "One {time} the {animal} found a {object} under a tree.",
            "One {time} the {animal} met {name} near the river.",
            "One {time} the {animal} lost a {object} in the snow.",
        ),
        ("The {animal} was very {feeling} and wanted to go home.", "The {animal} asked a {friend} for help."),
        (
            "In the end they shared some bread and the {animal} was {feeling}.",
            "In the end the {animal} went to sleep and was {feeling}.",
        ),
    ),
    choices={"adjective": _ADJECTIVES, "time": _TIMES, "object": THINGS, "name": NAMES[:6], "feeling": _FEELINGS,
           "friend": ("bear", "fox", "mouse", "horse", "duck"), "place": PLACES},
)  # fmt: skip

_DESCRIPTION = _Grammar(
    sentences=(
        ("The {place} is {size} and {mood} in the {time}.",),
        ("You can see {sight} and {sight} there.", "You can hear {sight} and smell the {smell}."),
        ("Many people go there to {act} with their {friends}.",),
    ),
    choices={
        "size": ("big", "small", "old", "wide"), "mood": ("quiet", "bright", "green", "cold", "warm"),
        "sight": ("birds", "trees", "flowers", "horses", "boats"), "smell": ("bread", "rain", "roses", "sea"),
        "act": ("walk", "sing", "rest", "play"), "friends": ("friends", "children", "dogs"), "time": _TIMES,
    },
)  # fmt: skip

_LETTER = _Grammar(
    sentences=(
        ("Dear {name},",),
        ("Thank you for the {thing} and the {gift}.", "I hope you are {feeling} and well."),
        ("This {time} I went to the {place} with {other}.", "This {time} I stayed at home with {other}."),
        ("Please bring the {thing} when you visit me.", "Please tell me about the {thing} soon."),
        ("Your friend, {other}",),
    ),
    choices={"gift": ("bread", "flowers", "books", "cards"), "feeling": _FEELINGS, "time": _TIMES, "place": PLACES,
           "other": NAMES[:8]},
    joiner="\n",
)  # fmt: skip


def _story(rng: random.Random) -> tuple[str, str]:
    animal, place = rng.choice(ANIMALS), rng.choice(PLACES)
    if rng.random() < 0.4:
        return f"Write a short story about {with_article(animal)}.", _STORY.sample(rng, {"animal": animal})
    prompt = f"Write a short story about {with_article(animal)} in the {place}."
    return prompt, _STORY.sample(rng, {"animal": animal, "place": place})


def _description(rng: random.Random) -> tuple[str, str]:
    place, time, name = rng.choice(PLACES), rng.choice(_TIMES), rng.choice(NAMES)
    return f"Describe the {place} in the {time} for {name}.", _DESCRIPTION.sample(rng, {"place": place, "time": time})


def _letter(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice((*WORDS[:24], *THINGS))
    return f"Write a letter to {name} about the {thing}.", _LETTER.sample(rng, {"name": name, "thing": thing})


def _open_list(rng: random.Random) -> tuple[str, str]:
    count, category, name = rng.randint(3, 6), rng.choice(list(CATEGORIES)), rng.choice(NAMES)
    verb = "knows" if category in ("cities", "names") else "likes"
    # Items keep the category's order, with gaps, so the previous item alone determines which may follow.
    # In free order a model of this size never learned to avoid items that it had already named.
    pool, at, lines = CATEGORIES[category], 0, []
    for i in range(1, count + 1):
        item = _pick(rng, pool[at : len(pool) - (count - i)])
        at = pool.index(item) + 1
        lines.append(f"{i}. {name} {verb} {item}")
    return f"List {count} {category} for {name}.", "\n".join(lines)


HIGH = {
    "stories": _story,
    "descriptions": _description,
    "letters": _letter,
    "lists": _open_list,
}
