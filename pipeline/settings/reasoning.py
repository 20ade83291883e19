"""Splits a generation into its reasoning, which stands between two tags, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.codec import explain
from pipeline.errors import ConfigError

REASONING = "reasoning"
"""The output column."""
NAMED: Mapping[str, tuple[str, str]] = {"think": ("<think>", "</think>")}
"""Name of a parser -> its tags."""
_LONGEST_TAG = 256


@dataclass(frozen=True)
class Tags:
    """The tags around the reasoning. ``open`` may begin the text, end its prompt, or be missing."""

    open: str
    close: str

    def split(self, text: str, *, opened: bool) -> tuple[str | None, str]:
        """Split a text at its first closing tag, and drop the whitespace next to tags.

        Args:
            text: a generation.
            opened: whether its prompt ends with ``open``.

        Returns:
            The reasoning, None if there is no tag; and the answer, empty if the reasoning has no closing tag.
        """
        before, closed, answer = text.partition(self.close)
        begun = before.lstrip().startswith(self.open)
        if not (closed or begun or opened):
            return None, text
        if begun:
            before = before.lstrip()[len(self.open) :]
        return before.strip(), answer.lstrip()


def tags_of(given: object) -> Tags | None:
    """The tags that ``reasoning_parser`` stands for: a name of :data:`NAMED`, or two tags. None stands for None.

    Raises:
        ConfigError: it is neither.
    """
    if given is None:
        return None
    if isinstance(given, str):
        if given not in NAMED:
            rule = f"a name of {list(NAMED)}, or a list of two tags"
            raise ConfigError(explain("reasoning_parser", given, rule, 'Write "think", or ["<think>", "</think>"].'))
        return Tags(*NAMED[given])
    pair = list(given) if isinstance(given, Sequence) else []
    fits = [isinstance(tag, str) and 1 <= len(tag.strip()) <= len(tag) <= _LONGEST_TAG for tag in pair]
    if len(pair) != 2 or not all(fits) or pair[0] == pair[1]:
        rule = f"two different tags of 1 to {_LONGEST_TAG} characters"
        raise ConfigError(explain("reasoning_parser", given, rule, 'Write ["<think>", "</think>"].'))
    return Tags(pair[0], pair[1])
