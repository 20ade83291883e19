"""Expected output lengths of rows, learned from the rows of the job that have finished. Plain logic; knows no Ray.

Long rows should begin first: a long row that begins last runs alone, while all other slots are empty. The expected
length of a row is the mean of the finished rows of its kind, within the row's own limits.
"""

from __future__ import annotations

import functools
import math
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.codec import SamplingParams

OPENING = 16
"""First tokens of a prompt that identify its template: the marks of a chat, and the first words of the task."""
_PRIOR = 4
"""Weight of the coarser kind's mean, in finished rows: with a smaller one, a single long row decides."""
_MOST_KINDS = 1 << 14
"""Most kinds that are remembered: without a template, nearly every row has another opening."""

Sums = Mapping[int, tuple[int, int]]
"""Name of a kind -> number of its finished generations, and the sum of their tokens."""


class Kind(NamedTuple):
    """Rows whose outputs have the same expected length.

    Attributes:
        names: hashes of the kinds that the rows belong to, the coarsest first; the same in all processes.
        least, most: bounds of an output, in tokens.
    """

    names: tuple[int, ...]
    least: int
    most: int


def kind_of(opening: Sequence[int], length: int, params: SamplingParams) -> Kind:
    """The kind of a row: by form and limit of its output, then by the length of its prompt, then by its template.

    ``opening``: the first :data:`OPENING` token ids of its prompt, which has ``length`` tokens.
    """
    form = hash((_form(params), params.max_tokens.bit_length()))
    ends_early = not params.ignore_eos or params.stop or params.stop_token_ids
    return Kind(
        names=(form, hash((form, length.bit_length())), hash((form, *opening))),
        least=params.min_tokens if ends_early else params.max_tokens,
        most=params.max_tokens,
    )


@functools.lru_cache(maxsize=1024)
def _form(params: SamplingParams) -> int:
    """A hash of the output form that the parameters request."""
    return zlib.crc32(repr(params.structure).encode("utf-8", "backslashreplace"))


def longest_kinds(kinds: Iterable[Kind], most: int) -> list[Kind]:
    """The different kinds of a unit's rows, each with its largest limits; at most ``most``, by the largest limits."""
    found: dict[tuple[int, ...], Kind] = {}
    for kind in kinds:
        other = found.get(kind.names, kind)
        found[kind.names] = Kind(kind.names, max(kind.least, other.least), max(kind.most, other.most))
    return sorted(found.values(), key=lambda kind: kind.most, reverse=True)[:most]


class Lengths:
    """Mean output lengths by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, int]] = {}
        self._news: dict[int, tuple[int, int]] = {}
        self._rows, self._settled = 0, 0

    def learn(self, kind: Kind, tokens: int) -> None:
        """Record the tokens of a finished generation of this kind. A kind without names is ignored."""
        if not kind.names:
            return
        own = dict.fromkeys(kind.names, (1, tokens))
        with self._lock:
            self._rows += 1
            _add(self._sums, own)
            _add(self._news, own)

    def take_news(self) -> Sums:
        """The sums of the rows since the last call, for :meth:`add` in another process."""
        with self._lock:
            news, self._news = self._news, {}
        return news

    def add(self, news: Sums) -> None:
        """Add the sums of another process."""
        with self._lock:
            self._rows += max((rows for rows, _ in news.values()), default=0)
            _add(self._sums, news)

    def order_is_due(self) -> bool:
        """Whether units should be sorted by size again: rows have doubled since this was last true."""
        if self._rows < 2 * self._settled or not self._rows:
            return False
        self._settled = self._rows
        return True

    def expected(self, kind: Kind) -> float:
        """Expected tokens of an output: its limit until a row of one of its kinds has finished."""
        mean = float(kind.most)
        for name in kind.names:
            rows, tokens = self._sums.get(name, (0, 0))
            mean = (tokens + _PRIOR * mean) / (rows + _PRIOR)
        return min(kind.most, max(kind.least, mean))

    def size(self, kinds: Iterable[Kind]) -> int:
        """Size class of the longest row: each class is twice as long as the one before."""
        return math.frexp(max(map(self.expected, kinds), default=0.0))[1]


def _add(sums: dict[int, tuple[int, int]], more: Sums) -> None:
    for name, (rows, tokens) in more.items():
        if name in sums or len(sums) < _MOST_KINDS:
            old_rows, old_tokens = sums.get(name, (0, 0))
            sums[name] = (old_rows + rows, old_tokens + tokens)
