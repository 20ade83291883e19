"""Finds near-duplicates: candidates by MinHash (``datasketch``) and bands on disk, each compared exactly.

Rows come from the best to the worst. A row that is a near-duplicate of one that was kept is dropped, and names it;
any other is kept and entered in the index. So each dropped row has a better row like it among the kept rows. No chain
of likenesses drops a row that is unlike all kept rows. A row is missed if its signature shares no band with the
signature of the row like it.

The index holds the bands and the text of kept rows in the temporary database, about 30 bytes a band in addition to the
text. Memory holds a fixed number of rows.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from pipeline.commit.index.scratch import Scratch
from pipeline.errors import ResourceError
from pipeline.selection.settings import DedupConfig

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_MOST_COMPARED = 256
"""Kept rows that a row is compared with at most; those with the most bands in common come first."""
_REMEMBERED = 1024
_AT_ONCE = 4096
"""Runs of words that are hashed at once."""
_HIGHEST = 0.95
"""Threshold for the choice of bands at most; one band alone, as for 1.0, the library refuses."""
_RECALL_WEIGHT = 0.9
"""Weight of missed pairs against pairs compared in vain, for the number of bands; wrong candidates only cost time."""


def shingles(text: str, ngram: int) -> frozenset[str]:
    """The runs of ``ngram`` words of a text; of a shorter text, all its words as one."""
    words = _WORD.findall(text.lower())
    if len(words) <= ngram:
        return frozenset([" ".join(words) or text.strip()])
    return frozenset(" ".join(words[i : i + ngram]) for i in range(len(words) - ngram + 1))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Size of the intersection over that of the union."""
    both = len(one & other)
    return both / (len(one) + len(other) - both)


class NearDuplicates:
    """An index of kept rows in a temporary database."""

    def __init__(self, scratch: Scratch, config: DedupConfig) -> None:
        """An empty index.

        Raises:
            ResourceError: ``datasketch`` is not installed.
        """
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise ResourceError(
                'dedup: it needs datasketch, which is not installed. pip install "wedlm-batch[filter]"'
            ) from error
        self._scratch, self._config = scratch, config
        self._minhash = MinHash(num_perm=config.permutations, hashfunc=zlib.crc32)
        weights = (1 - _RECALL_WEIGHT, _RECALL_WEIGHT)
        chosen = MinHashLSH(threshold=min(config.threshold, _HIGHEST), num_perm=config.permutations, weights=weights)
        self._bands, self._rows = int(chosen.b), int(chosen.r)
        scratch.run("CREATE TABLE bands (key INTEGER, ordinal INTEGER, PRIMARY KEY (key, ordinal)) WITHOUT ROWID")
        self._query = (
            f"SELECT ordinal, count(*) AS shared FROM bands WHERE key IN ({', '.join('?' * self._bands)}) "
            f"GROUP BY ordinal ORDER BY shared DESC, ordinal LIMIT {_MOST_COMPARED}"
        )
        self._shingles_of = lru_cache(maxsize=_REMEMBERED)(self._read)

    def duplicates(self, rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, int, float]]:
        """Of rows (ordinal, text) from the best on: ordinal of each that is dropped, of its like, and similarity."""
        for ordinal, text in rows:
            own = shingles(text, self._config.ngram)
            keys = self._keys(own)
            like = self._like(own, keys)
            if like is None:
                self._scratch.write("INSERT OR IGNORE INTO bands VALUES (?, ?)", ((key, ordinal) for key in keys))
            else:
                yield ordinal, *like

    def _like(self, own: frozenset[str], keys: list[int]) -> tuple[int, float] | None:
        for other, _ in self._scratch.all(self._query, keys):
            similarity = jaccard(own, self._shingles_of(other))
            if similarity >= self._config.threshold:
                return other, similarity
        return None

    def _read(self, ordinal: int) -> frozenset[str]:
        row = self._scratch.one("SELECT text FROM texts WHERE ordinal = ?", (ordinal,))
        assert row is not None
        return shingles(row[0], self._config.ngram)

    def _keys(self, own: frozenset[str]) -> list[int]:
        """One signed 64-bit number for each band of the signature."""
        minhash: Any = self._minhash
        minhash.clear()
        every = iter(own)
        while batch := [one.encode("utf-8", "surrogatepass") for one in islice(every, _AT_ONCE)]:
            minhash.update_batch(batch)
        values = np.ascontiguousarray(minhash.hashvalues[: self._bands * self._rows]).reshape(self._bands, self._rows)
        return [
            int.from_bytes(hashlib.blake2b(bytes([band & 255, band >> 8]) + row.tobytes(), digest_size=8).digest(),
                           "little", signed=True)
            for band, row in enumerate(values)
        ]  # fmt: skip
