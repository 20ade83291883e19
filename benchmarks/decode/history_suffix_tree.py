"""The suffix tree of ``arctic_inference`` 0.3.0 on the texts of :mod:`benchmarks.decode.history_drafts`.

The package is distributed as source and belongs to a plug-in of vLLM; its folder ``suffix_decoding`` needs neither vLLM
nor torch. It is built alone with nanobind 2.9.2, a C++20 compiler and CMake::

    cmake -S csrc/suffix_decoding -B build -DPYTHON_EXECUTABLE=$(which python) -DCMAKE_BUILD_TYPE=Release
    cmake --build build && cp build/_C*.so arctic_inference/suffix_decoding/

and found with the source folder on ``PYTHONPATH``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from benchmarks.decode.history_texts import Row

__all__ = ["available", "decode_with_tree", "indexing_speed"]

_DEPTH = 64  # tokens of a suffix, its default


def available() -> bool:
    """Whether the package can be imported."""
    return find_spec("arctic_inference") is not None


def decode_with_tree(
    rows: Sequence[Row], concurrency: int, drafts: int, least: float
) -> tuple[int, int, int, int, float]:
    """Decode as ``history_drafts.decode`` does, with its defaults for all but the probability below which it stops.

    Returns:
        Tokens, forwards, drafts offered and accepted over all sequences, and the seconds spent on proposals.
    """
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache, waiting = SuffixDecodingCache(max_tree_depth=_DEPTH), list(reversed(list(enumerate(rows))))
    done: dict[int, int] = {}  # output tokens of each running row
    tokens = forwards = offered = accepted = 0
    seconds = 0.0
    while done or waiting:
        while len(done) < concurrency and waiting:
            number, row = waiting.pop()
            cache.start_request(number, row.prompt)
            done[number] = 0
        for number in list(done):
            row, left = rows[number], rows[number].output[done[number] :]
            context = np.concatenate([row.prompt, row.output[: done[number]]])[-_DEPTH:]
            begin = time.perf_counter()
            found = cache.speculate(number, context, max_spec_tokens=drafts, min_token_prob=least)
            seconds += time.perf_counter() - begin
            proposed, agreed = found.token_ids[: len(left) - 1], 0
            while agreed < len(proposed) and proposed[agreed] == left[agreed]:
                agreed += 1
            tokens, forwards = tokens + agreed + 1, forwards + 1
            offered, accepted = offered + len(proposed), accepted + agreed
            cache.add_active_response(number, left[: agreed + 1])
            done[number] += agreed + 1
            if done[number] == len(row.output):
                cache.stop_request(number)
                del done[number]
    return tokens, forwards, offered, accepted, seconds


def indexing_speed(rows: Sequence[Row]) -> tuple[float, float]:
    """Million tokens per second when outputs enter the shared tree, and its own estimate of bytes per token."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=_DEPTH)
    begin = time.perf_counter()
    for number, row in enumerate(rows):
        cache.start_request(number, np.zeros(0, np.int32))
        cache.add_active_response(number, row.output)
        cache.stop_request(number)
    tokens = sum(len(row.output) for row in rows)
    seconds = time.perf_counter() - begin
    return tokens / seconds / 1e6, cache._global_tree.estimate_memory() / tokens
