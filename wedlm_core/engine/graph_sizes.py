"""Which forwards are captured in CUDA graphs, and when. Torch-free."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["GraphBook", "GraphKey", "graph_sizes", "kv_buckets"]

_SMALL = (1, 2, 4, 8)
_STEPS = ((128, 8), (512, 32))  # up to so many rows: sizes so far apart
_LAST_STEP = 64
_FIRST_BUCKET = 1024


def graph_sizes(limit: int) -> list[int]:
    """Padded row counts, ascending, up to ``limit``: 1, 2, 4, 8, then every 8th to 128, 32nd to 512, 64th after."""
    sizes = [size for size in _SMALL if size <= limit]
    size = _SMALL[-1]
    while True:
        size += next((step for upto, step in _STEPS if size < upto), _LAST_STEP)
        if size > limit:
            return sizes
        sizes.append(size)


def kv_buckets(most: int) -> list[int]:
    """Bounds of a sequence's KV entries that graphs are told apart by: 1024, four times that, ... and ``most``."""
    buckets = []
    bucket = _FIRST_BUCKET
    while bucket < most:
        buckets.append(bucket)
        bucket *= 4
    return [*buckets, most]


@dataclass(frozen=True, kw_only=True, order=True)
class GraphKey:
    """What is fixed in a captured forward: its rows, those of one sequence at most, and KV entries at most."""

    size: int
    max_rows: int
    max_kv: int


class GraphBook:
    """Chooses sizes and decides on captures, within a budget.

    Args:
        limit: rows of the largest captured forward.
        window_rows: decode rows of a sequence at most; forwards with longer prefill chunks have graphs of their own.
        most_kv: KV entries of a sequence at most.
        seconds, most_bytes: what all captures together may take.
    """

    def __init__(self, *, limit: int, window_rows: int, most_kv: int, seconds: float, most_bytes: int) -> None:
        self.sizes, self._buckets = graph_sizes(limit), kv_buckets(most_kv)
        self._window_rows = window_rows
        self._seconds, self._bytes = seconds, most_bytes
        self._used: set[GraphKey] = set()

    def padded(self, rows: int) -> int | None:
        """Rows that a forward is padded to; None where it is too large for a graph."""
        place = bisect_left(self.sizes, rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def key(self, size: int, max_rows: int, max_kv: int) -> GraphKey:
        """The graph for a forward of a padded size."""
        narrow = min(size, self._window_rows)
        return GraphKey(
            size=size,
            max_rows=narrow if max_rows <= narrow else size,
            max_kv=self._buckets[bisect_left(self._buckets, max_kv)],
        )

    def first_keys(self) -> list[GraphKey]:
        """What is captured at start-up: decode forwards of short contexts, largest first so that memory is shared."""
        return [self.key(size, 1, 1) for size in reversed(self.sizes)]

    def wants(self, key: GraphKey) -> bool:
        """Whether to capture now: the second time a forward of a kind comes, while the budget lasts."""
        if self._seconds <= 0 or self._bytes <= 0:
            return False
        again = key in self._used
        self._used.add(key)
        return again

    def spend(self, seconds: float, used_bytes: int) -> None:
        """Account a capture."""
        self._seconds -= seconds
        self._bytes -= used_bytes

    @property
    def exhausted(self) -> bool:
        """Whether no capture can be paid for any more."""
        return self._seconds <= 0 or self._bytes <= 0
