"""Rings of tokens indexed by n-gram: written token by token, and searched for the end of a text. Integers only.

Each ring holds the last ``1 << bits`` tokens that were written to it. Token p lies at ``start + p % size``, and counts
from ``begin`` on, where the present text begins. For each order, ``head`` holds the latest position of each bucket of
n-grams (hashed), and ``before`` the position in the same bucket before it: a chain that ends where positions were
overwritten or are of an earlier text. So nothing is ever deleted, an index costs a few stores per token, and a match is
checked token by token, whatever hashes do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel

Array = np.ndarray[Any, np.dtype[Any]]

ROW_END = -1
"""Stands after each row in the shared ring: no match reaches over it."""

_SALT = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_ONE, _HALF, _WORD = np.uint64(1), np.uint64(32), np.uint64(64)


class Rings(NamedTuple):
    """Rings in one arena of N tokens; ring ``s`` is the text of slot s, the last one is shared.

    ``start, bits, begin, end`` int64 ``[rings]``: first place, log2 of the size, the first position that counts,
    positions written. ``token`` int32 ``[N]``. ``before, head`` int32 ``[orders, N]``. ``order`` int64, ascending.
    """

    start: Array
    bits: Array
    begin: Array
    end: Array
    token: Array
    before: Array
    head: Array
    order: Array


@kernel
def _bucket(hashed, bits):  # type: ignore[no-untyped-def]
    mixed = (hashed ^ (hashed >> _HALF)) * _SALT
    return np.int64(mixed >> (_WORD - np.uint64(bits)))


@kernel
def _absorb(hashed, token):  # type: ignore[no-untyped-def]
    """The hash of an n-gram that begins one token earlier."""
    return (hashed + np.uint64(token) + _ONE) * _STEP


@kernel
def _oldest(rings, ring):  # type: ignore[no-untyped-def]
    """The first position of a ring that is still there."""
    return max(rings.begin[ring], rings.end[ring] - (1 << rings.bits[ring]))


@kernel
def write(rings, ring, token):  # type: ignore[no-untyped-def]
    """Write one token after those of a ring, and index the n-grams that end with it."""
    start, bits, last, order = rings.start[ring], rings.bits[ring], rings.end[ring], rings.order
    size = 1 << bits
    tokens, before, head = rings.token, rings.before, rings.head
    tokens[start + (last & (size - 1))] = token
    rings.end[ring] = last + 1
    oldest = _oldest(rings, ring)
    hashed, depth = np.uint64(0), 0
    for k in range(len(order)):
        while depth < order[k]:
            if last - depth < oldest:
                return
            found = tokens[start + ((last - depth) & (size - 1))]
            if found < 0:
                return
            hashed = _absorb(hashed, found)
            depth += 1
        place = start + _bucket(hashed, bits)
        before[k, start + (last & (size - 1))] = head[k, place]
        head[k, place] = last


@kernel
def extend(rings, ring, tokens):  # type: ignore[no-untyped-def]
    """Write tokens (any integers) after those of a ring."""
    for i in range(len(tokens)):
        write(rings, ring, tokens[i])


@kernel
def copy_text(rings, source, first, target):  # type: ignore[no-untyped-def]
    """Copy a ring from position ``first`` on to another one, and end the row there."""
    start, size, end = rings.start[source], 1 << rings.bits[source], rings.end[source]
    for p in range(max(first, _oldest(rings, source)), end):
        write(rings, target, rings.token[start + (p & (size - 1))])
    write(rings, target, ROW_END)


@kernel
def read_tail(rings, ring, tail, hashes):  # type: ignore[no-untyped-def]
    """The last tokens of a text, and the hashes of the n-grams that they are.

    Args:
        rings: :class:`Rings`.
        ring: the text.
        tail: int64, written: the tokens, latest first, as many as it has places for.
        hashes: uint64 of each order, written where there are so many tokens.

    Returns:
        How many tokens were written.
    """
    start, size, end = rings.start[ring], 1 << rings.bits[ring], rings.end[ring]
    depth = min(len(tail), end - _oldest(rings, ring))
    for d in range(depth):
        tail[d] = rings.token[start + ((end - 1 - d) & (size - 1))]
    hashed, d = np.uint64(0), 0
    for k in range(len(rings.order)):
        while d < min(rings.order[k], depth):
            hashed = _absorb(hashed, tail[d])
            d += 1
        hashes[k] = hashed
    return depth


@kernel
def _match(rings, ring, position, tail, depth):  # type: ignore[no-untyped-def]
    """How many tokens up to a position are those of the tail."""
    start, size = rings.start[ring], 1 << rings.bits[ring]
    oldest = _oldest(rings, ring)
    m = 0
    while m < depth and position - m >= oldest and rings.token[start + ((position - m) & (size - 1))] == tail[m]:
        m += 1
    return m


@kernel
def find(rings, ring, tail, depth, hashes, found):  # type: ignore[no-untyped-def]
    """Positions after the longest matches of a tail, among the latest occurrences of its longest n-gram.

    Args:
        rings: :class:`Rings`.
        ring: that is searched.
        tail: int64, of :func:`read_tail`.
        depth: how many tokens it has.
        hashes: uint64, of the same.
        found: int64 ``[walk]``, written; so many occurrences are looked at, latest first.

    Returns:
        How many were written to ``found``, latest first, and the length of the match.
    """
    start, bits, oldest = rings.start[ring], rings.bits[ring], _oldest(rings, ring)
    for k in range(len(rings.order) - 1, -1, -1):
        if rings.order[k] > depth:
            continue
        position = rings.head[k, start + _bucket(hashes[k], bits)]
        number, best = 0, 0
        for _ in range(len(found)):
            if position < oldest:
                break
            if position + 1 < rings.end[ring]:  # else it is the tail itself
                length = _match(rings, ring, position, tail, depth)
                if length >= rings.order[k] and length >= best:
                    if length > best:
                        number, best = 0, length
                    found[number] = position + 1
                    number += 1
            position = rings.before[k, start + (position & ((1 << bits) - 1))]
        if number:
            return number, best
    return 0, 0
