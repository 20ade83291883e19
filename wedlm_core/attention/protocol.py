"""What a forward's rows look like to attention, and what a backend has to offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from wedlm_core.kv.pool import KVPool

__all__ = ["AttentionBackend", "AttentionPlan", "PackedRows"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """The rows of one forward: S sequences one after the other, T rows in all.

    Sequence s owns rows ``starts_S[s] .. starts_S[s] + counts_S[s]``; its row r is written to the
    sequence's KV index ``cached_S[s] + r`` and sees KV indices up to and including its own, so order in
    the forward is the causal order, whatever the rows' logical positions.

    Attributes:
        counts_S: rows of each sequence, each at least 1.
        cached_S: KV entries each sequence has from earlier forwards.
        starts_S: exclusive cumulative sum of ``counts_S``.
        pages_SP: int64 page table; entries past a sequence's pages are any valid page (they are masked).
    """

    counts_S: IntArray
    cached_S: IntArray
    starts_S: IntArray
    pages_SP: Tensor

    @property
    def total(self) -> int:
        """T, the rows of the forward."""
        return int(self.counts_S.sum())


class AttentionPlan(Protocol):
    """What a backend prepared for one forward; shared by all its layers."""

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """Queries ``[T', H, Dh]`` (T' >= T, padding last) -> context of the same shape; padding is any value.

        Keys and values of the forward's own rows are already in the pool.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention. ``batch_invariant`` backends give each row bitwise the same result in any batch."""

    name: str
    batch_invariant: bool

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> AttentionPlan:
        """Prepare one forward (host work only, once per forward)."""
        ...
