"""What the prompts of a unit begin with, in few numbers: to bring rows together where a cache holds their prefix."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

__all__ = ["sketch_of"]

_ENTRIES = 48


def sketch_of(prompts: Iterable[Sequence[int]], page: int) -> Mapping[int, int]:
    """Prefix -> tokens that a cache which holds it would save; the most telling ones.

    Prefixes are taken at 1, 2, 4, ... pages, and each stands for the tokens since the one before, once for
    each row.

    Args:
        prompts: token ids.
        page: tokens that a cache shares or not.
    """
    tokens: Counter[int] = Counter()
    for ids in prompts:
        shorter, length = 0, page
        while length < len(ids):  # the last token is always computed
            data = np.asarray(ids[:length], dtype=np.int32).tobytes()
            key = int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")
            tokens[key] += length - shorter
            shorter, length = length, 2 * length
    return dict(tokens.most_common(_ENTRIES))
