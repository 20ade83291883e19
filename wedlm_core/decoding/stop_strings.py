"""Stop strings on decoded text: the first textual occurrence, found token by token; and bad words as tokens.

Tokens are examined one at a time, however many a forward commits, so the cut does not depend on the
strategy or the window. Only generated text is looked at, never the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from wedlm_core.errors import RequestError, explain
from wedlm_core.tokenizer import TextStream, Tokenizer


class StopStrings:
    """Watches one generation for its stop strings.

    Args:
        stops: the strings.
        stream: for its tokens.
        after: tokens that come first in any case: a string that ends with one of these ends nothing.

    Attributes:
        text: the generated text so far (whole characters), cut at the stop string once one was found.
    """

    def __init__(self, stops: tuple[str, ...], stream: TextStream, after: int = 0) -> None:
        self._stops, self._stream, self._after = stops, stream, after
        self.text = ""

    def push(self, token_ids: Iterable[int]) -> int | None:
        """Add committed tokens; the number of them to keep when one completes a stop string, else None."""
        for kept, token in enumerate(token_ids, start=1):
            self._after -= 1
            if self._append(self._stream.push([token])):
                return kept
        return None

    def finish(self) -> None:
        """Flush an incomplete last character; it may complete a stop string, which then cuts ``text``."""
        self._append(self._stream.finish())

    def _append(self, piece: str) -> bool:
        before = len(self.text)
        self.text += piece
        if self._after >= 0:
            return False
        # Each ends within the new piece: one that ended before has been found, or came too early.
        places = (self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stops)
        found = [at for at in places if at >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)


def check_words(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
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
