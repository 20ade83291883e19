"""Stop strings on decoded text: the first textual occurrence, found token by token.

Tokens are examined one at a time, however many a forward commits, so the cut does not depend on the
strategy or the window. Only generated text is looked at, never the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from wedlm_core.tokenizer import TextStream

__all__ = ["StopStrings"]


class StopStrings:
    """Watches one generation for its stop strings.

    Attributes:
        text: what was generated so far (whole characters), cut at the stop string once one was found.
    """

    def __init__(self, stops: tuple[str, ...], stream: TextStream) -> None:
        self._stops, self._stream = stops, stream
        self._longest = max(len(stop) for stop in stops)
        self.text = ""

    def push(self, token_ids: Iterable[int]) -> int | None:
        """Add committed tokens; the number of them to keep when one completes a stop string, else None."""
        for kept, token in enumerate(token_ids, start=1):
            if self._append(self._stream.push([token])):
                return kept
        return None

    def finish(self) -> None:
        """Flush an incomplete last character; it may complete a stop string, which then cuts ``text``."""
        self._append(self._stream.finish())

    def _append(self, piece: str) -> bool:
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [at for at in (self.text.find(stop, start) for stop in self._stops) if at >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)
