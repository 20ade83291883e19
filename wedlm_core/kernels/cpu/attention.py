"""Causal attention of packed rows over a paged KV pool with transposed keys.

A group of up to 32 queries of a sequence and KV head is computed together, as one call that is given addresses and
counts: with one row of a short sequence it has a few thousand multiplications, less than it takes to pass arrays.
Keys and values come from memory, and are fetched while others are multiplied: values while the same tokens' keys are,
and the keys of the next group while values are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at, numbers_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32, exp
from wedlm_core.kernels.cpu.tile import MULTIPLIERS, ROWS, address
from wedlm_core.kernels.cpu.vector import LANES, first_lanes, largest, load, spread, store, total

QUERIES = 32
"""Queries that are computed together: they and their scores of a tile fit in the L1 cache."""
_TILE = 64  # keys that are multiplied together, at most
_FAR_BYTES = 1 << 18  # of keys that may be between a fetch and its use: a part of the L2 cache
_ENDLESS = 1 << 60  # elements of an array of unknown length


class Pool(NamedTuple):
    """Keys and values of a layer, and the queries of its rows: addresses and counts.

    Attributes:
        keys: ``[kv_heads, entries / block, Dh, block]``, in the numbers of the kernel.
        values: ``[kv_heads, entries, Dh]``, in the same.
        key_scales: float32 ``[kv_heads, entries]``, factors of keys in int8; not read for others.
        value_scales: the same of values.
        entries: of a KV head.
        block: keys that stand beside each other.
        page_bits: two to their power are the tokens of a page, at least those of a block.
        dim: Dh.
        kv_heads: of the model.
        group: query heads of each.
        q: float32 ``[T, kv_heads * group * Dh]``.
        out: the same, written.
        scale: of the scores, float32.
    """

    keys: int
    values: int
    key_scales: int
    value_scales: int
    entries: int
    block: int
    page_bits: int
    dim: int
    kv_heads: int
    group: int
    q: int
    out: int
    scale: np.float32


class Group(NamedTuple):
    """Queries that are computed together, and those that probably come next.

    Attributes:
        pages: address of the page numbers of the sequence, int64.
        start: row of the sequence's first query.
        cached: tokens before it.
        first: first query of the group: query ``i`` is query head ``i % group`` of row ``i // group``.
        queries: 1 to :data:`QUERIES`.
        head: KV head.
        next_pages: ``pages`` of the next group.
        next_tokens: keys that it has.
        next_head: its KV head.
    """

    pages: int
    start: int
    cached: int
    first: int
    queries: int
    head: int
    next_pages: int
    next_tokens: int
    next_head: int


@kernel
def space_size(dim, width):  # type: ignore[no-untyped-def]
    """Numbers of the scratch of a thread: a line of them, queries, and the scores of each, for the longest sequence."""
    return QUERIES + QUERIES * (dim + width)


@kernel
def group_space(dim, width):  # type: ignore[no-untyped-def]
    """The scratch of a thread, float32 ``[space_size]``."""
    return np.empty(space_size(dim, width), dtype=np.float32)


@kernel
def bits_of(size):  # type: ignore[no-untyped-def]
    """The power of two that a size is."""
    bits = 0
    while 1 << bits < size:
        bits += 1
    return bits


@kernel(inline="always")
def _entry(pages, page_bits, token):  # type: ignore[no-untyped-def]
    """KV entry of a token of a sequence."""
    return (pages[token >> page_bits] << page_bits) + (token & ((1 << page_bits) - 1))


@kernel(inline="always")
def _row_of(pool, number):  # type: ignore[no-untyped-def]
    """The row of a query, of those of its sequence and KV head. Nearly always the first: a division takes longer."""
    return number // pool.group if number >= pool.group else 0


@kernel(inline="always")
def _place_of(pool, group, i):  # type: ignore[no-untyped-def]
    """Where query ``i`` of a group is among the rows, and its result."""
    number = group.first + i
    row = _row_of(pool, number)
    head = group.head * pool.group + number - row * pool.group
    return ((group.start + row) * pool.kv_heads * pool.group + head) * pool.dim


@kernel
def _gather(pool, group, space):  # type: ignore[no-untyped-def]
    """Copy the queries, scaled, to the scratch."""
    q, dim = array_at(pool.q, (_ENDLESS,), np.float32), pool.dim
    for i in range(group.queries):
        at, to = _place_of(pool, group, i), QUERIES + i * dim
        for d in range(0, dim, LANES):
            store(space, to + d, dim - d, load(q, at + d, dim - d, F32(0.0)) * pool.scale)


@kernel
def _scatter(pool, group, space):  # type: ignore[no-untyped-def]
    """Copy the results, each times its share, back to the rows."""
    out, dim = array_at(pool.out, (_ENDLESS,), np.float32), pool.dim
    for i in range(group.queries):
        at, to, share = QUERIES + i * dim, _place_of(pool, group, i), space[i]
        for d in range(0, dim, LANES):
            store(out, to + d, dim - d, load(space, at + d, dim - d, F32(0.0)) * share)


@kernel
def _weigh(space, at, seen, width):  # type: ignore[no-untyped-def]
    """Scores of ``seen`` keys -> ``exp(score - max)``, zero from there to ``width``; returns their sum."""
    best = spread(F32(-np.inf))
    for k in range(0, seen, LANES):
        best = max(best, load(space, at + k, seen - k, F32(-np.inf)))
    top = largest(best)
    lanes = spread(F32(0.0))
    whole = seen // LANES * LANES
    for k in range(0, whole, LANES):
        weight = exp(max(load(space, at + k, LANES, F32(0.0)) - top, F32(-87.0)))
        store(space, at + k, LANES, weight)
        lanes = lanes + weight
    for k in range(whole, width, LANES):
        weight = exp(max(load(space, at + k, seen - k, top) - top, F32(-87.0)))
        weight = first_lanes(weight, seen - k)
        store(space, at + k, LANES, weight)
        lanes = lanes + weight
    return total(lanes)


@kernel
def _rescale(space, at, count, scales, entry):  # type: ignore[no-untyped-def]
    """Multiply ``count`` scores from ``at`` on by the scales of the entries from ``entry`` on."""
    for k in range(0, count, LANES):
        left = count - k
        store(space, at + k, left, load(space, at + k, left, F32(0.0)) * load(scales, entry + k, left, F32(0.0)))


@kernel(inline="always")
def _seen_by(pool, group, last, begin):  # type: ignore[no-untyped-def]
    """How many keys from ``begin`` on the last of some queries attends to."""
    return group.cached + _row_of(pool, group.first + last) + 1 - begin


_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def _scoring(numbers: str) -> Any:
    """The kernel of a group's scores; ``numbers`` of keys."""
    multiply, scaled, size = MULTIPLIERS[numbers], numbers == "int8", _BYTES[numbers]

    @kernel(label=f"_{numbers}")
    def score(pool, group, tile, near, space, width):  # type: ignore[no-untyped-def]
        """The scores of all queries: of a tile of keys after the other, while its values are fetched."""
        dim, pages, here = pool.dim, numbers_at(group.pages, _ENDLESS), address(space)
        scales = array_at(pool.key_scales, (_ENDLESS,), np.float32)
        longest, base = _seen_by(pool, group, group.queries - 1, 0), group.head * pool.entries
        for begin in range(0, longest, tile):
            entry = base + _entry(pages, pool.page_bits, begin)
            ahead = pool.values + size * dim * entry
            if near and begin + tile < longest:
                ahead = pool.keys + size * dim * (base + _entry(pages, pool.page_bits, begin + tile))
            elif near:
                ahead = pool.values + size * dim * (base + _entry(pages, pool.page_bits, 0))
            for i in range(0, group.queries, ROWS):
                rows = min(ROWS, group.queries - i)
                seen = _seen_by(pool, group, i + rows - 1, begin)
                if seen <= 0:
                    continue
                columns, to = min(tile, (seen + LANES - 1) // LANES * LANES), QUERIES * (1 + dim) + i * width + begin
                multiply(
                    here + 4 * (QUERIES + i * dim), dim, pool.keys + size * dim * entry, pool.block, dim * pool.block,
                    ahead, here + 4 * to, width, rows, dim, columns, True,
                )  # fmt: skip
                if scaled:
                    for r in range(rows):
                        _rescale(space, to + r * width, columns, scales, entry)

    return score


def _mixing(numbers: str) -> Any:
    """The kernel of a group's weighted values; ``numbers`` of values."""
    multiply, scaled, size = MULTIPLIERS[numbers], numbers == "int8", _BYTES[numbers]

    @kernel(label=f"_{numbers}")
    def mix(pool, group, tile, near, space, width):  # type: ignore[no-untyped-def]
        """The weighted values: of a tile after the other, while keys of the next group are fetched."""
        dim, pages, here = pool.dim, numbers_at(group.pages, _ENDLESS), address(space)
        scales, soon = array_at(pool.value_scales, (_ENDLESS,), np.float32), numbers_at(group.next_pages, _ENDLESS)
        longest, base = _seen_by(pool, group, group.queries - 1, 0), group.head * pool.entries
        for begin in range(0, longest, tile):
            entry, following = base + _entry(pages, pool.page_bits, begin), begin
            ahead = pool.values + size * dim * entry
            if near:
                following = 0
            if near and begin + tile < longest:
                ahead = pool.values + size * dim * (base + _entry(pages, pool.page_bits, begin + tile))
            elif following < group.next_tokens:
                next_entry = group.next_head * pool.entries + _entry(soon, pool.page_bits, following)
                ahead = pool.keys + size * dim * next_entry
            for i in range(0, group.queries, ROWS):
                rows = min(ROWS, group.queries - i)
                depth = min(tile, _seen_by(pool, group, i + rows - 1, begin))
                if depth <= 0:
                    continue
                at = QUERIES * (1 + dim) + i * width + begin
                if scaled:
                    for r in range(rows):
                        _rescale(space, at + r * width, depth, scales, entry)
                multiply(
                    here + 4 * at, width, pool.values + size * dim * entry, dim, LANES, ahead,
                    here + 4 * (QUERIES + i * dim), dim, rows, depth, dim, begin == 0,
                )  # fmt: skip

    return mix


def _attending(numbers: str) -> Any:
    """The kernel of a group; ``numbers`` of keys and values."""
    score, mix, size = _scoring(numbers), _mixing(numbers), _BYTES[numbers]

    @kernel(label=f"_{numbers}")
    def attend_group(pool, group, space, width):  # type: ignore[no-untyped-def]
        """Attention of one group of queries.

        Args:
            pool: :class:`Pool`.
            group: :class:`Group`.
            space: :func:`group_space`.
            width: scores of a query that it has room for, a multiple of 16.
        """
        tile, longest = min(_TILE, 1 << pool.page_bits), _seen_by(pool, group, group.queries - 1, 0)
        near = size * pool.dim * longest > _FAR_BYTES
        _gather(pool, group, space)
        score(pool, group, tile, near, space, width)
        for i in range(group.queries):
            at, seen = QUERIES * (1 + pool.dim) + i * width, _seen_by(pool, group, i, 0)
            space[i] = F32(1.0) / _weigh(space, at, seen, (longest + LANES - 1) // LANES * LANES)
        mix(pool, group, tile, near, space, width)
        _scatter(pool, group, space)

    return attend_group


GROUPS = {numbers: _attending(numbers) for numbers in _BYTES}
"""The kernel of a group of queries, by the numbers of keys and values (bfloat16 as its bits): see ``attend_group``."""
