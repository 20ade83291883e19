"""Which forwards are captured in CUDA graphs, and when. Torch-free."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

_SMALL = (1, 2, 4, 8)
_STEPS = ((128, 8), (512, 32), (1024, 64))  # (most rows, distance of sizes up to there)
_LAST_STEP = 128
_FIRST_BUCKET = 1024
_USES, _USES_COVERED = 2, 32  # forwards before a capture: if no graph covers them, and if one does


def graph_sizes(limit: int) -> list[int]:
    """Padded row counts up to ``limit``: 1, 2, 4, 8, every 8th to 128, 32nd to 512, 64th to 1024, 128th after."""
    sizes = [size for size in _SMALL if size <= limit]
    size = _SMALL[-1]
    while True:
        size += next((step for upto, step in _STEPS if size < upto), _LAST_STEP)
        if size > limit:
            return sizes
        sizes.append(size)


def kv_buckets(most: int) -> list[int]:
    """Bounds of a sequence's KV entries in graphs: 1024, 4096, 16384, ... and ``most``."""
    buckets = []
    bucket = _FIRST_BUCKET
    while bucket < most:
        buckets.append(bucket)
        bucket *= 4
    return [*buckets, most]


@dataclass(frozen=True, kw_only=True, order=True)
class GraphKey:
    """Sizes of a captured forward: rows, and the most sequences, rows of a sequence and KV entries of a sequence."""

    size: int
    max_kv: int
    sequences: int
    max_rows: int

    def covers(self, other: GraphKey) -> bool:
        """Whether this graph can run the other's forwards: same rows, no smaller bound."""
        return (
            self.size == other.size
            and self.max_kv >= other.max_kv
            and self.sequences >= other.sequences
            and self.max_rows >= other.max_rows
        )


class GraphBook:
    """Chooses sizes and decides on captures, within a budget.

    Attention splits its work by the bounds, so a forward is fastest in a graph of its own bounds. But any graph of its
    size with larger bounds can run it. The graphs with the largest bounds are captured first. Another one is captured
    once it was wanted several times, because a capture takes as long as a few dozen forwards.

    Args:
        limit: rows of the largest captured forward.
        sequences: of a forward at most.
        most_kv: KV entries of a sequence at most.
        seconds, most_bytes: limits of all captures together.
    """

    def __init__(self, *, limit: int, sequences: int, most_kv: int, seconds: float, most_bytes: int) -> None:
        self.sizes, self._buckets = graph_sizes(limit), kv_buckets(most_kv)
        self._sequences = sequences
        self._seconds, self._bytes = seconds, most_bytes
        self._uses: Counter[GraphKey] = Counter()
        self._captured: dict[int, list[GraphKey]] = {}

    def padded(self, rows: int) -> int | None:
        """Rows that a forward is padded to; None where it is too large for a graph."""
        place = bisect_left(self.sizes, rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def key(self, size: int, *, sequences: int, max_rows: int, max_kv: int) -> GraphKey | None:
        """The best graph for a forward of a padded size. Bounds are rounded up, so that there are few graphs.

        None where the forward has more sequences, or longer ones, than the graphs' buffers hold.
        """
        if sequences > min(self._sequences, size) or max_rows > size or max_kv > self._buckets[-1]:
            return None
        return GraphKey(
            size=size,
            max_kv=self._buckets[bisect_left(self._buckets, max_kv)],
            sequences=min(_power_of(2, sequences), self._sequences, size),
            max_rows=min(_power_of(4, max_rows), size),
        )

    def padded_sequences(self, decoding: int, sequences: int, size: int) -> tuple[int, int]:
        """Round up the numbers of decoding sequences and of all sequences of a forward of a padded size.

        They are rounded to sizes of forwards, so that few kinds of work are recorded while a job drains, but never
        beyond the number of rows or the places in the buffers.
        """
        room = min(self._sequences, size)
        others = sequences - decoding
        padded = min(self.padded(decoding) or decoding, room - others)
        whole = padded + others
        return padded, min(self.padded(whole) or whole, room)

    def general(self, size: int) -> GraphKey:
        """The graph that can run every forward of a size. Each sequence has at least one row."""
        return GraphKey(size=size, max_kv=self._buckets[-1], sequences=min(self._sequences, size), max_rows=size)

    def first_keys(self) -> list[GraphKey]:
        """The captures at start-up, largest first so that memory is shared."""
        return [self.general(size) for size in reversed(self.sizes)]

    def covering(self, key: GraphKey) -> GraphKey | None:
        """The captured graph with the smallest bounds that can run a forward; None if there is no such graph."""
        return min((k for k in self._captured.get(key.size, ()) if k.covers(key)), default=None)

    def wants(self, key: GraphKey) -> bool:
        """Count a use, and return whether to capture now: the kind of forward is frequent, and some budget is left."""
        if self.exhausted or key in self._captured.get(key.size, ()):
            return False
        self._uses[key] += 1
        return self._uses[key] >= (_USES if self.covering(key) is None else _USES_COVERED)

    def captured(self, key: GraphKey, seconds: float, used_bytes: int) -> None:
        """Account a capture."""
        self._captured.setdefault(key.size, []).append(key)
        self.spend(seconds, used_bytes)

    def spend(self, seconds: float, used_bytes: int) -> None:
        """Account the cost of a capture of other work."""
        self._seconds -= seconds
        self._bytes -= used_bytes

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self._seconds <= 0 or self._bytes <= 0


def _power_of(base: int, number: int) -> int:
    """The smallest power of ``base`` that is at least ``number``."""
    power = 1
    while power < number:
        power *= base
    return power
