"""Prefix histogram of a unit: common prefixes of its prompts, with the tokens that a prefix cache would save.

The dispatcher uses it to send a unit to the actor whose cache holds its prefixes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

_MAX_ENTRIES = 48


def prefix_histogram(prompts: Iterable[Sequence[int]], page: int) -> Mapping[int, int]:
    """Hash of a prefix -> prompt tokens that a cache with this prefix saves; the 48 largest entries.

    Prefixes of 1, 2, 4, ... pages are counted. An entry counts the tokens beyond the next shorter prefix, once for each
    prompt that has the prefix.

    Args:
        prompts: token ids of each prompt.
        page: tokens per page of the KV cache.
    """
    tokens: Counter[int] = Counter()
    for ids in prompts:
        shorter, length = 0, page
        while length < len(ids):  # the last token is never taken from the cache
            data = np.asarray(ids[:length], dtype=np.int32).tobytes()
            key = int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")
            tokens[key] += length - shorter
            shorter, length = length, 2 * length
    return dict(tokens.most_common(_MAX_ENTRIES))
