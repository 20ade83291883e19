"""What is known of the states of automata: which tokens each allows, and which text it forces.

A state is asked about once: what the library says of it there holds for every sequence that comes to it. The library
spells a forced text by the last token too, so that is asked once for each state and last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wedlm_core.decoding.allowed_tokens import WORD, only, words_of_vocabulary
from wedlm_core.grammar.automaton import Automaton
from wedlm_core.grammar.constraint import take_forced
from wedlm_core.kernels.cpu.grammar_walk import TABLES, allowed_bits, follows, forced_text, insert_text

__all__ = ["KnownStates"]

_MOST_STATES = 1 << 16
_MOST_LINE_BYTES = 128 << 20
_MOST_TEXTS = 1 << 18
_SIZES = {"class_GB": "grammars", "line": "states", "next": "transitions", "bits": "lines", "key": "keys",
          "text_at": "texts", "text_token": "text_tokens", "byte": "bytes"}  # fmt: skip


class KnownStates:
    """Grows as sequences come to states that none came to before.

    Args:
        token_bytes: of each token of the vocabulary; empty for those that no text spells.
        eos_token_ids: tokens that end an output.

    Attributes:
        record: one :data:`wedlm_core.kernels.cpu.grammar_walk.TABLES`; its arrays are replaced as they grow.
    """

    def __init__(self, token_bytes: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        lengths = np.array([0, *map(len, token_bytes)], dtype=np.int64)
        is_eos_V = np.zeros(len(token_bytes), dtype=np.bool_)
        is_eos_V[list(eos_token_ids)] = True
        self._words = words_of_vocabulary(len(token_bytes))
        self._eos_W = _bits_of(np.flatnonzero(is_eos_V), self._words)
        self._most_lines = max(64, _MOST_LINE_BYTES // (4 * self._words))
        self._byte_at_V, self._is_eos_V = lengths.cumsum(), is_eos_V
        self._byte_N = np.frombuffer(b"".join(token_bytes), dtype=np.uint8)
        self._eos = tuple(eos_token_ids)
        self.clear()

    def clear(self) -> None:
        """Forget all automata."""
        none, several = np.zeros(0, dtype=np.int64), len(self._eos) > 1
        self._arrays: dict[str, np.ndarray[Any, Any]] = {
            "class_GB": np.zeros((0, 256), dtype=np.uint8), "width_G": none, "first_G": none, "at_G": none,
            "next": np.zeros(0, dtype=np.int32), "line": none, "text_token": none,
            **{name: np.zeros(0, dtype=np.bool_) for name in ("accepts", "ends", "forces")},
            "bits": np.zeros((64, self._words), dtype=np.int32), "text_at": np.zeros(2, dtype=np.int64),
            "key": np.full(256, -1, dtype=np.int64), "text": np.zeros(256, dtype=np.int64),
            "byte_at": self._byte_at_V, "byte": self._byte_N, "is_eos": self._is_eos_V,
        }  # fmt: skip
        self._lines, self._texts, self._keys = int(several), 1, 0
        if several:
            self._arrays["bits"][0] = self._eos_W
        self.record = np.zeros(1, dtype=TABLES)
        self.record["tokens"], self.record["words"] = len(self._is_eos_V), self._words
        self.record["end_line"] = 0 if several else only(self._eos[0])
        self._put(**self._arrays)

    def _put(self, **arrays: np.ndarray[Any, Any]) -> None:
        """Replace arrays; the record has their addresses and sizes."""
        self._arrays |= arrays
        for name, array in arrays.items():
            self.record[name] = array.ctypes.data
            if name in _SIZES:
                self.record[_SIZES[name]] = len(array) - (name == "text_at")

    @property
    def bits(self) -> np.ndarray[Any, Any]:
        """int32 ``[lines, words]``, which tokens states allow."""
        return self._arrays["bits"]

    @property
    def is_full(self) -> bool:
        """Whether no automaton should be added any more."""
        many = len(self._arrays["line"]) >= _MOST_STATES or self._keys >= _MOST_TEXTS // 2
        return many or self._lines >= self._most_lines // 2

    def add(self, automaton: Automaton) -> int:
        """The number of an automaton of which nothing is known yet."""
        next_SC, accepts_S, own = automaton.next_SC, automaton.accepts_S, self._arrays
        states, classes = next_SC.shape
        followers_S = (next_SC >= 0) @ np.bincount(automaton.class_B, minlength=classes)
        self._put(
            class_GB=np.concatenate([own["class_GB"], automaton.class_B[None]]),
            width_G=np.append(own["width_G"], classes),
            first_G=np.append(own["first_G"], len(own["line"])),
            at_G=np.append(own["at_G"], len(own["next"])),
            next=np.concatenate([own["next"], next_SC.astype(np.int32).ravel()]),
            accepts=np.concatenate([own["accepts"], accepts_S]),
            ends=np.concatenate([own["ends"], accepts_S & (followers_S == 0)]),
            forces=np.concatenate([own["forces"], ~accepts_S & (followers_S == 1)]),
            line=np.concatenate([own["line"], np.full(states, -1, dtype=np.int64)]),
        )
        return len(own["first_G"]) - 1

    def _number(self, grammar: int, state: int) -> int:
        return int(self._arrays["first_G"][grammar]) + state

    def text_of(self, grammar: int, state: int, last: int) -> int:
        """The number of the text that is forced behind a token; -1 if that is not known."""
        return int(forced_text(self.record, self._number(grammar, state), last))

    def learn_text(self, grammar: int, state: int, last: int, matcher: Any) -> bool:
        """Ask which text is forced behind a token; False if that cannot be kept, or is not what the state's bytes say.

        Args:
            grammar: number of the automaton.
            state: counted from its first.
            last: the token before, -1 at the beginning.
            matcher: at this place; it is moved.
        """
        text = take_forced(matcher)
        if matcher.is_error() or self._keys >= _MOST_TEXTS or any(self._is_eos_V[token] for token in text):
            return False
        if not follows(self.record, grammar, state, np.array(text, dtype=np.int64)):
            return False
        number = 0
        if text:
            number, begin = self._texts, int(self._arrays["text_at"][self._texts])
            self._texts += 1
            self._put(
                text_at=_grown(self._arrays["text_at"], number + 2),
                text_token=_grown(self._arrays["text_token"], begin + len(text)),
            )
            self._arrays["text_token"][begin : begin + len(text)] = text
            self._arrays["text_at"][number + 1] = begin + len(text)
        self._keys += 1
        if 2 * self._keys > len(self._arrays["key"]):
            self._rehash()
        insert_text(self.record, self._number(grammar, state), last, number)
        return True

    def _rehash(self) -> None:
        """Twice the places for the keys of texts."""
        keys, texts = self._arrays["key"], self._arrays["text"]
        size, each = 2 * len(keys), len(self._is_eos_V) + 1
        self._put(key=np.full(size, -1, dtype=np.int64), text=np.zeros(size, dtype=np.int64))
        for i in np.flatnonzero(keys >= 0).tolist():
            insert_text(self.record, int(keys[i]) // each, int(keys[i]) % each - 1, int(texts[i]))

    def knows_line(self, grammar: int, state: int) -> bool:
        """Whether it is known which tokens a state allows."""
        return bool(self._arrays["line"][self._number(grammar, state)] >= 0)

    def learn_line(self, grammar: int, state: int, matcher: Any) -> bool:
        """Ask which tokens are allowed in a state that forces none; False if the answer is not what its bytes say.

        Args:
            grammar: number of the automaton.
            state: counted from its first.
            matcher: at this place.
        """
        if self._lines >= self._most_lines:
            return False
        self._put(bits=_grown(self._arrays["bits"], self._lines + 1))
        asked_W, own_W = self._arrays["bits"][self._lines], np.empty(self._words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(asked_W.ctypes.data, asked_W.nbytes)
        if matcher.is_error():
            return False
        allowed_bits(self.record, grammar, state, own_W)
        number = self._number(grammar, state)
        eos_W = self._eos_W if self._arrays["accepts"][number] else np.zeros_like(self._eos_W)
        differ_W = (asked_W & ~self._eos_W) ^ own_W
        if self._arrays["forces"][number]:
            differ_W &= asked_W  # the library leaves out tokens that end before the forced bytes do
        if differ_W.any() or (asked_W & self._eos_W != eos_W).any():
            return False
        self._arrays["line"][number] = self._lines
        self._lines += 1
        return True


def _grown(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """An array that holds so many at least; it keeps its place as long as it can."""
    if size <= len(array):
        return array
    made = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    made[: len(array)] = array
    return made


def _bits_of(tokens: np.ndarray[Any, Any], words: int) -> np.ndarray[Any, Any]:
    bits_W = np.zeros(words, dtype=np.uint32)
    for token in tokens.tolist():
        bits_W[token // WORD] |= np.uint32(1 << token % WORD)
    return bits_W.view(np.int32)
