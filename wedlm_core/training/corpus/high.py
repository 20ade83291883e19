"""High-entropy families: a prompt has many correct answers, and a validator checks them."""

from __future__ import annotations

import random
import re

from wedlm_core.training.corpus.grammar import Grammar, pick
from wedlm_core.training.corpus.word_problem import Family
from wedlm_core.training.corpus.words import ANIMALS, CATEGORIES, NAMES, PLACES, THINGS, WORDS, with_article

_FEELINGS = ("happy", "tired", "proud", "brave", "calm")
_ADJECTIVES = ("little", "old", "clever", "brave", "shy", "happy")
_TIMES = ("morning", "evening", "summer", "winter", "spring")

_STORY = Grammar(
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

_DESCRIPTION = Grammar(
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

_LETTER = Grammar(
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

_STORY_PROMPT = re.compile(r"Write a short story about an? (\w+)(?: in the (\w+))?\.")
_DESCRIPTION_PROMPT = re.compile(r"Describe the (\w+) in the (\w+) for (\w+)\.")
_LETTER_PROMPT = re.compile(r"Write a letter to (\w+) about the (\w+)\.")
_LIST_PROMPT = re.compile(r"List (\d) (\w+) for (\w+)\.")


def _story(rng: random.Random) -> tuple[str, str]:
    animal, place = rng.choice(ANIMALS), rng.choice(PLACES)
    if rng.random() < 0.4:
        return f"Write a short story about {with_article(animal)}.", _STORY.sample(rng, {"animal": animal})
    prompt = f"Write a short story about {with_article(animal)} in the {place}."
    return prompt, _STORY.sample(rng, {"animal": animal, "place": place})


def _check_story(prompt: str, answer: str, text: str) -> bool:
    match = _STORY_PROMPT.fullmatch(prompt)
    if match is None:
        return False
    bound = {"animal": match[1]} | ({"place": match[2]} if match[2] else {})
    return _STORY.accepts(text, bound)


def _description(rng: random.Random) -> tuple[str, str]:
    place, time, name = rng.choice(PLACES), rng.choice(_TIMES), rng.choice(NAMES)
    return f"Describe the {place} in the {time} for {name}.", _DESCRIPTION.sample(rng, {"place": place, "time": time})


def _check_description(prompt: str, answer: str, text: str) -> bool:
    match = _DESCRIPTION_PROMPT.fullmatch(prompt)
    return match is not None and _DESCRIPTION.accepts(text, {"place": match[1], "time": match[2]})


def _letter(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice((*WORDS[:24], *THINGS))
    return f"Write a letter to {name} about the {thing}.", _LETTER.sample(rng, {"name": name, "thing": thing})


def _check_letter(prompt: str, answer: str, text: str) -> bool:
    match = _LETTER_PROMPT.fullmatch(prompt)
    return match is not None and _LETTER.accepts(text, {"name": match[1], "thing": match[2]})


def _open_list(rng: random.Random) -> tuple[str, str]:
    count, category, name = rng.randint(3, 6), rng.choice(list(CATEGORIES)), rng.choice(NAMES)
    verb = "knows" if category in ("cities", "names") else "likes"
    # Items keep the category's order, with gaps, so the previous item alone determines which may follow.
    # In free order a model of this size never learned to avoid items that it had already named.
    pool, at, lines = CATEGORIES[category], 0, []
    for i in range(1, count + 1):
        item = pick(rng, pool[at : len(pool) - (count - i)])
        at = pool.index(item) + 1
        lines.append(f"{i}. {name} {verb} {item}")
    return f"List {count} {category} for {name}.", "\n".join(lines)


def _check_list(prompt: str, answer: str, text: str) -> bool:
    match = _LIST_PROMPT.fullmatch(prompt)
    if match is None or match[2] not in CATEGORIES:
        return False
    verb = "knows" if match[2] in ("cities", "names") else "likes"
    lines, seen = text.strip().split("\n"), set()
    for i, line in enumerate(lines, 1):
        start = f"{i}. {match[3]} {verb} "
        if not line.startswith(start) or line[len(start) :] not in CATEGORIES[match[2]]:
            return False
        seen.add(line[len(start) :])
    return len(lines) == len(seen) == int(match[1])


HIGH = tuple(
    Family(name=name, regime="high", unique=False, make=make, check=check)
    for name, make, check in (
        ("stories", _story, _check_story),
        ("descriptions", _description, _check_description),
        ("letters", _letter, _check_letter),
        ("lists", _open_list, _check_list),
    )
)
