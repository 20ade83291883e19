"""Texts that must not be generated, as token ids."""

from __future__ import annotations

from typing import Protocol

from wedlm_core.errors import RequestError, explain


class _Encodes(Protocol):
    def encode(self, text: str) -> list[int]: ...


def check_words(tokenizer: _Encodes, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Token ids of each text, as the tokenizer spells it at the beginning of a text and after a space.

    Other cuts of the same text into tokens are other tokens, and are not banned.

    Raises:
        RequestError: a text has no tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        plain = tuple(tokenizer.encode(word.lstrip()))
        if not plain:
            raise RequestError(explain("bad_words", word, "it has no token of this model", "Drop it."))
        found[plain] = None
        spaced = tuple(tokenizer.encode(" " + word.lstrip()))
        if spaced[-len(plain) :] != plain:  # else the space is a token of its own, and the word is banned already
            found[spaced] = None
    return tuple(found)
