"""Causal attention of packed rows over a paged KV pool with transposed keys."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32, exp
from wedlm_core.kernels.cpu.tile import ROWS, address, multiply, multiply_bfloat16, multiply_int8
from wedlm_core.kernels.cpu.vector import LANES, first_lanes, largest, load, spread, store, total

__all__ = ["QUERIES", "attend", "attend_group", "group_space"]

QUERIES = 32
"""Queries that are computed together: they and their scores of a block fit in the L1 cache."""


def _multiply(held, rows, a, a_step, b, b_step, following, c, c_step, depth, columns, fresh):  # type: ignore[no-untyped-def]
    """:func:`multiply` by a part of ``held``, at an address, whatever its numbers."""


@overload(_multiply)
def _multiply_of(held, rows, a, a_step, b, b_step, following, c, c_step, depth, columns, fresh):  # type: ignore[no-untyped-def]
    if held.dtype == types.uint16:

        def narrow(held, rows, a, a_step, b, b_step, following, c, c_step, depth, columns, fresh):  # type: ignore[no-untyped-def]
            multiply_bfloat16(a, a_step, b, b_step, following, c, c_step, rows, depth, columns, fresh)

        return narrow
    if held.dtype == types.int8:

        def eight_bits(held, rows, a, a_step, b, b_step, following, c, c_step, depth, columns, fresh):  # type: ignore[no-untyped-def]
            multiply_int8(a, a_step, b, b_step, following, c, c_step, rows, depth, columns, fresh)

        return eight_bits

    def wide(held, rows, a, a_step, b, b_step, following, c, c_step, depth, columns, fresh):  # type: ignore[no-untyped-def]
        multiply(a, a_step, b, b_step, following, c, c_step, rows, depth, columns, fresh)

    return wide


def _rescale(held, scores, at, scales, entry, count):  # type: ignore[no-untyped-def]
    """Multiply ``count`` scores from ``at`` on by the scales of the entries from ``entry`` on, if ``held`` has such."""


@overload(_rescale)
def _rescale_of(held, scores, at, scales, entry, count):  # type: ignore[no-untyped-def]
    if held.dtype == types.int8:

        def by_scales(held, scores, at, scales, entry, count):  # type: ignore[no-untyped-def]
            for k in range(0, count, LANES):
                left = count - k
                scale = load(scales, entry + k, left, F32(0.0))
                store(scores, at + k, left, load(scores, at + k, left, F32(0.0)) * scale)

        return by_scales

    def as_they_are(held, scores, at, scales, entry, count):  # type: ignore[no-untyped-def]
        pass

    return as_they_are


@kernel
def attend(  # type: ignore[no-untyped-def]
    q, keys, values, key_scales, value_scales, pages, starts, counts, cached, page_size, scale, out, scores, first, last
):
    """Causal attention of packed rows over paged keys and values.

    The rows of a sequence, times the query heads of a KV head, are computed in groups of up to 32 queries. A group goes
    over the keys block by block, so that a block is read from memory once and from the cache afterwards.

    Args:
        q: ``[T, heads * Dh]``.
        keys: ``[kv_heads, blocks, Dh, block]``: float32, the bits of bfloat16 (uint16), or int8. They are widened as
            they are read.
        values: the same, ``[kv_heads, entries, Dh]``.
        key_scales: ``[kv_heads, entries]``, what keys in int8 are multiplied by; not read for others.
        value_scales: the same of values.
        pages: int64 ``[S, P]``.
        starts: int64 ``[S]``; this and the next two as in :class:`wedlm_core.attention.PackedRows`.
        counts: int64 ``[S]``.
        cached: int64 ``[S]``.
        page_size: tokens per page, a multiple of the block.
        scale: of the scores.
        out: ``[T, heads * Dh]``.
        scores: scratch ``[QUERIES, width]``; width is the longest context rounded up to whole blocks and to 16.
        first: first sequence to compute.
        last: one past the last sequence to compute.
    """
    kv_heads, _, dim, _ = keys.shape
    group = q.shape[1] // (kv_heads * dim)
    space = group_space(dim)
    for s in range(first, last):
        for m in range(0, counts[s] * group, QUERIES):
            for h in range(kv_heads):
                after = s if h + 1 < kv_heads or s + 1 == last else s + 1
                attend_group(
                    q, keys, values, key_scales, value_scales, pages, starts, counts, cached, page_size, scale, out,
                    scores, space, s, h, m, after, (h + 1) % kv_heads,
                )  # fmt: skip


@kernel
def group_space(dim):  # type: ignore[no-untyped-def]
    """Scratch of :func:`attend_group`: queries, and a line of numbers for each."""
    return np.empty((QUERIES + 1, max(dim, QUERIES)), dtype=np.float32)


@kernel
def attend_group(  # type: ignore[no-untyped-def]
    q, keys, values, key_scales, value_scales, pages, starts, counts, cached, page_size, scale, out, scores, space, s,
    h, m, next_s, next_h,
):  # fmt: skip
    """One group of :func:`attend`: up to 32 queries, from query ``m`` on, of sequence ``s`` and KV head ``h``.

    The first keys of KV head ``next_h`` of sequence ``next_s`` are fetched on the way: probably the next group's.
    """
    kv_heads, count, dim, block = keys.shape
    group = q.shape[1] // (kv_heads * dim)
    queries, shares = space[:QUERIES, :dim], space[QUERIES]
    span = max(block, LANES)
    together = min(QUERIES, counts[s] * group - m)
    longest = cached[s] + (m + together - 1) // group + 1
    width = (longest + span - 1) // span * span
    soon = address(keys) + keys.itemsize * (next_h * count + pages[next_s, 0] * page_size // block) * dim * block
    _gather(q, starts[s], m, together, group, h, scale, queries)
    _score(queries, keys, values, key_scales, pages[s], page_size, h, cached[s], m, together, group, scores)
    _mix(
        scores, values, value_scales, pages[s], page_size, block, h, cached[s], m, together, group, width, queries,
        shares, soon,
    )  # fmt: skip
    _scatter(queries, shares, starts[s], m, together, group, h, out)


@kernel
def _gather(q, start, m, together, group, head, scale, queries):  # type: ignore[no-untyped-def]
    """Copy the queries ``m .. m + together - 1`` of a sequence and KV head, scaled, to ``queries [QUERIES, Dh]``."""
    dim, own, width = queries.shape[1], queries.strides[0] // 4, q.shape[1]
    for i in range(together):
        at = (start + (m + i) // group) * width + (head * group + (m + i) % group) * dim
        for d in range(0, dim, LANES):
            store(queries, i * own + d, dim - d, load(q, at + d, dim - d, F32(0.0)) * scale)


@kernel
def _score(  # type: ignore[no-untyped-def]
    queries, keys, values, key_scales, pages, page_size, head, cached, m, together, group, scores
):
    """``scores[i, k] = queries[i] . keys[k]``, over the blocks that some query attends to."""
    _, count, dim, block = keys.shape
    width, here, to = scores.shape[1], address(queries), address(scores)
    step, size = queries.strides[0] // 4, keys.itemsize
    blocks = (cached + (m + together - 1) // group + block) // block
    base = address(keys) + size * head * count * dim * block
    for b in range(blocks):
        first = _entry(pages, page_size, b * block)
        part = base + size * dim * first
        following = address(values) + size * (head * values.shape[1] + _entry(pages, page_size, 0)) * dim
        if b + 1 < blocks:
            following = base + size * dim * (_entry(pages, page_size, (b + 1) * block) // block * block)
        for i in range(0, together, ROWS):
            rows = min(ROWS, together - i)
            seen = cached + (m + i + rows - 1) // group + 1 - b * block
            if seen > 0:
                columns = min(block, (seen + LANES - 1) // LANES * LANES)
                _multiply(
                    keys, rows, here + 4 * i * step, step, part, block, following, to + 4 * (i * width + b * block),
                    width, dim, columns, True,
                )  # fmt: skip
                for r in range(i, i + rows):
                    at, entry = r * width + b * block, head * values.shape[1] + first
                    _rescale(keys, scores, at, key_scales, entry, columns)


@kernel
def _entry(pages, page_size, token):  # type: ignore[no-untyped-def]
    """KV entry of a token of a sequence."""
    return pages[token // page_size] * page_size + token % page_size


@kernel
def _weigh(scores, seen, width):  # type: ignore[no-untyped-def]
    """Scores of ``seen`` keys -> ``exp(score - max)``, zero from there to ``width``; returns their sum."""
    best = spread(F32(-np.inf))
    for k in range(0, seen, LANES):
        best = max(best, load(scores, k, seen - k, F32(-np.inf)))
    top = largest(best)
    lanes = spread(F32(0.0))
    whole = seen // LANES * LANES
    for k in range(0, whole, LANES):
        weight = exp(max(load(scores, k, LANES, F32(0.0)) - top, F32(-87.0)))
        store(scores, k, LANES, weight)
        lanes = lanes + weight
    for k in range(whole, width, LANES):
        weight = exp(max(load(scores, k, seen - k, top) - top, F32(-87.0)))
        weight = first_lanes(weight, seen - k)
        store(scores, k, LANES, weight)
        lanes = lanes + weight
    return total(lanes)


@kernel
def _mix(  # type: ignore[no-untyped-def]
    scores, values, value_scales, pages, page_size, block, head, cached, m, together, group, width, mixed, shares, soon
):
    """``softmax(scores[i]) = shares[i] * mixed[i]`` of the values, causal."""
    _, entries, dim = values.shape
    step, here, to = scores.shape[1], address(scores), address(mixed)
    own, size = mixed.strides[0] // 4, values.itemsize
    for i in range(together):
        shares[i] = F32(1.0) / _weigh(scores[i], cached + (m + i) // group + 1, width)
    blocks = (cached + (m + together - 1) // group + block) // block
    base = address(values) + size * head * entries * dim
    for b in range(blocks):
        first = _entry(pages, page_size, b * block)
        part, following = base + size * dim * first, soon
        if b + 1 < blocks:
            following = base + size * dim * _entry(pages, page_size, (b + 1) * block)
        for i in range(0, together, ROWS):
            rows = min(ROWS, together - i)
            seen = cached + (m + i + rows - 1) // group + 1 - b * block
            if seen > 0:
                for r in range(i, i + rows):
                    at, entry = r * step + b * block, head * entries + first
                    _rescale(values, scores, at, value_scales, entry, min(block, seen))
                _multiply(
                    values, rows, here + 4 * (i * step + b * block), step, part, dim, following, to + 4 * i * own, own,
                    min(block, seen), dim, b == 0,
                )  # fmt: skip


@kernel
def _scatter(mixed, shares, start, m, together, group, head, out):  # type: ignore[no-untyped-def]
    """Copy results, each times its share, back to the rows: the inverse of :func:`_gather`."""
    dim, own, width = mixed.shape[1], mixed.strides[0] // 4, out.shape[1]
    for i in range(together):
        at = (start + (m + i) // group) * width + (head * group + (m + i) % group) * dim
        for d in range(0, dim, LANES):
            store(out, at + d, dim - d, load(mixed, i * own + d, dim - d, F32(0.0)) * shares[i])
