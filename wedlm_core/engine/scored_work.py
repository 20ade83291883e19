"""Sequences of the scorer, waiting and under way, and the tokens whose log-probabilities are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wedlm_core.kv.pages import SequencePages


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One scored sequence.

    Attributes:
        key: as it was added.
        logprobs: nats of each scored token; NaN where the model's logits are no numbers.
        greedy: whether each was the most likely token (the first of equal ones).
        cached_tokens: leading tokens whose KV was shared.
    """

    key: int
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    cached_tokens: int


@dataclass(kw_only=True, eq=False)
class Waiting:
    """Waiting sequences with these tokens in front of their last ones; ``ends`` has the last ones by key."""

    inputs: tuple[int, ...]
    context: tuple[int, ...]
    ends: dict[int, int]


@dataclass(kw_only=True, eq=False)
class Work(Waiting):
    """Those under way: each of ``inputs`` needs a row, those from ``first`` on logits too."""

    pages: SequencePages
    cached: int
    shared: int
    page_keys: list[bytes] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Place of the context's last token."""
        return len(self.context) - 1

    @property
    def left(self) -> int:
        """Rows that are not computed yet."""
        return len(self.inputs) - self.cached

    @property
    def targets(self) -> list[int]:
        """The tokens whose log-probabilities are wanted: those within ``inputs``, then every end."""
        return [*self.inputs[len(self.context) :], *self.ends.values()]


def targets_of(chunks: Sequence[tuple[Work, int]], edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Of the rows with logits each row's targets: places of rows, tokens, and the number of targets of each chunk.

    The last row of a sequence has all its ends as targets, any other row the token after it. ``edges``: the place of
    each chunk's first row, and the end.
    """
    places: list[int] = []
    tokens: list[int] = []
    counts = []
    for s, (work, rows) in enumerate(chunks):
        begin = max(0, work.cached - work.first)
        wanted = range(edges[s], edges[s + 1])
        is_last = rows == work.left
        own = work.targets[begin:] if is_last else work.targets[begin : begin + len(wanted)]
        repeated = [wanted[-1]] * (len(own) - len(wanted)) if is_last else []
        places += [*wanted, *repeated]
        tokens += own
        counts.append(len(own))
    return np.array(places, dtype=np.int64), np.array(tokens, dtype=np.int64), counts
