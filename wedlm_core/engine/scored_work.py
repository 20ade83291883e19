"""Waiting and running sequences of the scorer, and the tokens whose log-probabilities are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wedlm_core.kv.pages import SequencePages


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One scored sequence.

    Attributes:
        key: the key that it was added with.
        logprobs: nats of each scored token; NaN if the model's logits are NaN.
        greedy: for each scored token, whether it was the most likely one (the first of equal ones).
        cached_tokens: leading tokens whose KV was shared.
    """

    key: int
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    cached_tokens: int


@dataclass(kw_only=True, eq=False)
class Waiting:
    """Waiting sequences that differ only in their last token.

    Attributes:
        inputs: their common tokens: all but the last.
        context: the leading tokens that are not scored.
        ends: key -> last token of the sequence.
    """

    inputs: tuple[int, ...]
    context: tuple[int, ...]
    ends: dict[int, int]


@dataclass(kw_only=True, eq=False)
class Work(Waiting):
    """Running sequences that differ only in their last token: each of ``inputs`` needs a row.

    Rows from ``first`` on need logits too.
    """

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
    """The targets of rows with logits: the row of each target, its token, and the number of targets of each chunk.

    The targets of the last row of a work are all its ends. Any other row has one target, the token after it.
    ``edges``: the place of each chunk's first row, and the end.
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
