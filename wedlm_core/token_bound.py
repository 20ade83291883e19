"""A lower bound of the number of tokens of a long text, in a fraction of the time that encoding it takes.

A text of N bytes has at least N / longest tokens, where ``longest`` is the number of bytes of the longest token. Few
tokens are that long, so the longest ones are counted in the text: other tokens make up the rest of its bytes.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

_COUNTED = 2000
"""Tokens that are looked for in a text, at most; the longest ones."""
_BYTES_READ = 1 << 29
"""Bytes of text that are read to count tokens, at most: some tenths of a second."""


class TokenBound:
    """The bound of one tokenizer."""

    def __init__(self, backend: Backend) -> None:
        described = json.loads(backend.to_str())
        self._normalizer = described["normalizer"] and backend.normalizer
        self._longest = _tokens(described)[:_COUNTED] if _keeps_every_byte(described) else []

    def least(self, text: str, limit: int) -> int:
        """Tokens that ``text`` has at least; meant to be compared with ``limit``, and 0 where nothing is certain."""
        if not self._longest:
            return 0
        if self._normalizer is not None and not (text.isascii() or unicodedata.is_normalized("NFC", text)):
            text = self._normalizer.normalize_str(text)
        data = text.encode("utf-8", "surrogatepass")
        last = min(len(self._longest) - 1, _BYTES_READ // max(1, len(data)))
        width = max(len(self._longest[last]), len(data) // (2 * max(1, limit)))
        wide = (token for token in self._longest if len(token) > width)
        return max(0, len(data) - sum(len(token) * data.count(token) for token in wide)) // width


def _tokens(described: Mapping[str, Any]) -> list[bytes]:
    """The bytes of every token, longest first."""
    letters = {letter: byte for byte, letter in _letters().items()}
    found = [bytes(letters[c] for c in token) for token in described["model"]["vocab"] if set(token) <= letters.keys()]
    found += [token["content"].encode() for token in described["added_tokens"]]
    return sorted(found, key=len, reverse=True)


def _letters() -> dict[int, str]:
    """Byte -> the letter that stands for it in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def _keeps_every_byte(described: Mapping[str, Any]) -> bool:
    """Whether each byte of a (normalised) text is in a token: byte-level BPE, without steps that drop text."""
    model, normalizer = described["model"], described["normalizer"]
    steps = _steps(described["pre_tokenizer"])
    return (
        model["type"] == "BPE"
        and set(pre_tokenizers.ByteLevel.alphabet()) <= model["vocab"].keys()
        and not any(
            model.get(name) for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
        )
        and (normalizer is None or normalizer["type"] == "NFC")
        and any(step["type"] == "ByteLevel" for step in steps)
        and all(step["type"] in ("ByteLevel", "Digits") or step.get("behavior") == "Isolated" for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in described["added_tokens"])
    )


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return ()
    return pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else (pre_tokenizer,)
