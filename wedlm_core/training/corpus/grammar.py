"""Grammar: generates text with free choices, and accepts exactly the texts that it can generate.

A grammar is a sequence of sentences. A sentence is a tuple of alternatives. An alternative may hold placeholders
``{name}``: either a free choice from the grammar's words, or a value that the prompt fixes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def pick(rng: random.Random, options: Sequence[str]) -> str:
    """Draw an option with weights 1, 1/2, 1/3, ...: many are possible, one is the most likely."""
    return rng.choices(options, weights=[1 / (i + 1) for i in range(len(options))])[0]


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """Sentences with alternatives and placeholders.

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
            return bound[name] if name in bound else pick(rng, self.choices[name])

        return self.joiner.join(_PLACEHOLDER.sub(fill, pick(rng, alternatives)) for alternatives in self.sentences)

    def accepts(self, text: str, bound: Mapping[str, str]) -> bool:
        """Whether the grammar can generate ``text`` (surrounding white space is ignored)."""
        parts = ("(?:" + "|".join(self._pattern(a, bound) for a in options) + ")" for options in self.sentences)
        return re.fullmatch(re.escape(self.joiner).join(parts), text.strip()) is not None

    def _pattern(self, alternative: str, bound: Mapping[str, str]) -> str:
        out, at = [], 0
        for match in _PLACEHOLDER.finditer(alternative):
            name = match.group(1)
            options = [bound[name]] if name in bound else self.choices[name]
            out += [re.escape(alternative[at : match.start()]), "(?:" + "|".join(map(re.escape, options)) + ")"]
            at = match.end()
        return "".join(out) + re.escape(alternative[at:])
