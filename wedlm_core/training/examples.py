"""Examples: token ids of prompts and answers, in one file that is mapped into memory; another has their places."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_TOKENS, _SPANS = "tokens.bin", "spans.npy"


@dataclass(frozen=True, kw_only=True)
class Example:
    """Token ids of one document; ``answer`` ends with the end-of-sequence id."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Ids that training writes itself: after an answer and at the end of a row, and in place of a masked token."""

    eos: int
    mask: int


def write_examples(folder: Path, examples: Iterable[tuple[Sequence[int], Sequence[int], bool]]) -> None:
    """Write the token ids of prompts and answers, each with whether the example is held out, one after the other."""
    spans, written = array("q"), 0
    with (folder / _TOKENS).open("wb") as file:
        for prompt, answer, held_out in examples:
            file.write(np.array([*prompt, *answer], np.int32).tobytes())
            spans.extend((written, len(prompt), len(answer), held_out))
            written += len(prompt) + len(answer)
    np.save(folder / _SPANS, np.array(spans, np.int64).reshape(-1, 4))


class ExampleFile:
    """The examples of a folder to train on, or those that are held out. Memory: 32 bytes an example.

    Attributes:
        spans_N4: int64 ``[N, 4]``: first token of an example, tokens of its prompt and answer, whether it is held out.
    """

    def __init__(self, folder: Path, *, held_out: bool) -> None:
        spans: npt.NDArray[np.int64] = np.load(folder / _SPANS)
        self.spans_N4 = spans[spans[:, 3] == held_out]
        self._tokens = np.memmap(folder / _TOKENS, np.int32, "r") if len(spans) else np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.spans_N4)

    def __getitem__(self, number: int) -> Example:
        first, prompt, answer, _ = self.spans_N4[number].tolist()
        ids = self._tokens[first : first + prompt + answer].tolist()
        return Example(prompt=tuple(ids[:prompt]), answer=tuple(ids[prompt:]))
