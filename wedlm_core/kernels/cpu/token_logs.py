"""Logs of tokens indexed by n-gram: written token by token, and searched for what a text ends with. Integers only.

Each log is a ring over ``1 << bits`` tokens of one arena. Token p of a log lies at ``start + p % size`` for as long as
it is one of the last ``size``. For each order, ``head`` holds the latest position of each bucket of n-grams (hashed),
and ``before`` the position in the same bucket before it: a chain that ends where positions were overwritten. So nothing
is ever deleted, an index costs a few stores per token, and a match is checked token by token, whatever hashes do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["ROW_END", "Logs", "copy_row", "extend", "find", "hash_tail", "read_tail", "write"]

Array = np.ndarray[Any, np.dtype[Any]]

ROW_END = -1
"""Stands behind each row in the shared log: no match reaches over it."""

_SALT = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_ONE, _HALF, _WORD = np.uint64(1), np.uint64(32), np.uint64(64)


class Logs(NamedTuple):
    """Rings of tokens in one arena of N tokens; log ``s`` is the text of slot s, the last one is shared.

    ``start, bits, end`` int64 ``[logs]``: first place, log2 of the size, tokens ever written. ``token`` int32 ``[N]``.
    ``before, head`` int32 ``[orders, N]``. ``order`` int64, ascending.
    """

    start: Array
    bits: Array
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
def write(logs, log, token):  # type: ignore[no-untyped-def]
    """Write one token behind log number ``log``, and index the n-grams that end with it."""
    start, bits, last, order = logs.start[log], logs.bits[log], logs.end[log], logs.order
    size = 1 << bits
    tokens, before, head = logs.token, logs.before, logs.head
    tokens[start + (last & (size - 1))] = token
    logs.end[log] = last + 1
    oldest = max(last + 1 - size, 0)
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
def extend(logs, log, tokens):  # type: ignore[no-untyped-def]
    """Write tokens (any integers) behind log number ``log``."""
    for i in range(len(tokens)):
        write(logs, log, tokens[i])


@kernel
def copy_row(logs, source, first, target):  # type: ignore[no-untyped-def]
    """Write what a log holds from position ``first`` on behind another one, and that the row ends there."""
    start, size, end = logs.start[source], 1 << logs.bits[source], logs.end[source]
    for p in range(max(first, end - size), end):
        write(logs, target, logs.token[start + (p & (size - 1))])
    write(logs, target, ROW_END)


@kernel
def read_tail(logs, slot, draft, ahead, tail):  # type: ignore[no-untyped-def]
    """The last tokens of a text and the drafts behind it.

    Args:
        logs: :class:`Logs`.
        slot: whose log is the text.
        draft: integers, the drafts.
        ahead: how many of them there are.
        tail: int64, written: the tokens, latest first, as many as it has places for.

    Returns:
        How many were written.
    """
    depth = 0
    while depth < len(tail) and depth < ahead:
        tail[depth] = draft[ahead - 1 - depth]
        depth += 1
    start, size, end = logs.start[slot], 1 << logs.bits[slot], logs.end[slot]
    p = end - 1
    while depth < len(tail) and p >= max(end - size, 0):
        tail[depth] = logs.token[start + (p & (size - 1))]
        p -= 1
        depth += 1
    return depth


@kernel
def hash_tail(tail, depth, order, hashes):  # type: ignore[no-untyped-def]
    """Hash the last tokens of each order, all of them where there are fewer.

    Args:
        tail: int64, tokens, latest first.
        depth: how many there are.
        order: int64, ascending.
        hashes: uint64 of each order, written.
    """
    hashed, d = np.uint64(0), 0
    for k in range(len(order)):
        while d < min(order[k], depth):
            hashed = _absorb(hashed, tail[d])
            d += 1
        hashes[k] = hashed


@kernel
def _match(logs, log, position, tail, depth):  # type: ignore[no-untyped-def]
    """How many tokens up to a position are those of the tail."""
    start, size = logs.start[log], 1 << logs.bits[log]
    oldest = max(logs.end[log] - size, 0)
    m = 0
    while m < depth and position - m >= oldest and logs.token[start + ((position - m) & (size - 1))] == tail[m]:
        m += 1
    return m


@kernel
def find(logs, log, tail, depth, hashes, walk, found):  # type: ignore[no-untyped-def]
    """Positions behind the longest matches of a tail, among the latest occurrences of its longest n-gram.

    Args:
        logs: :class:`Logs`.
        log: that is searched.
        tail: int64, of :func:`read_tail`.
        depth: how many tokens it has.
        hashes: uint64, of :func:`hash_tail`.
        walk: occurrences that are looked at, latest first.
        found: int64 ``[walk]``, written.

    Returns:
        How many were written to ``found``, latest first, and the length of the match.
    """
    start, bits, end = logs.start[log], logs.bits[log], logs.end[log]
    size = 1 << bits
    oldest = max(end - size, 0)
    for k in range(len(logs.order) - 1, -1, -1):
        if logs.order[k] > depth:
            continue
        position = logs.head[k, start + _bucket(hashes[k], bits)]
        number, best = 0, 0
        for _ in range(walk):
            if position < oldest:
                break
            if position + 1 < end:  # else it is the tail itself
                length = _match(logs, log, position, tail, depth)
                if length >= logs.order[k] and length >= best:
                    if length > best:
                        number, best = 0, length
                    found[number] = position + 1
                    number += 1
            position = logs.before[k, start + (position & (size - 1))]
        if number:
            return number, best
    return 0, 0
