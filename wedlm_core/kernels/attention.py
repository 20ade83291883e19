"""Causal attention of packed rows over a paged pool whose keys lie transposed in blocks."""

from __future__ import annotations

import numpy as np
from numba import njit

from wedlm_core.kernels.scalar import F32, JIT, LANES, exp, fma, sum_lanes

__all__ = ["attend"]


@njit(**JIT)
def _scores_1(q, keys, out):  # type: ignore[no-untyped-def]
    """``out[k] = q . keys[:, k]`` over one block, summed in the order of d; ``keys [Dh, block]``."""
    whole = keys.shape[0] // 4 * 4
    for k in range(keys.shape[1]):
        out[k] = F32(0.0)
    for d in range(0, whole, 4):
        a0, a1, a2, a3 = q[d], q[d + 1], q[d + 2], q[d + 3]
        for k in range(keys.shape[1]):
            out[k] = fma(
                a3, keys[d + 3, k], fma(a2, keys[d + 2, k], fma(a1, keys[d + 1, k], fma(a0, keys[d, k], out[k])))
            )
    for d in range(whole, keys.shape[0]):
        for k in range(keys.shape[1]):
            out[k] = fma(q[d], keys[d, k], out[k])


@njit(**JIT)
def _scores_4(q, keys, s0, s1, s2, s3):  # type: ignore[no-untyped-def]
    """:func:`_scores_1` for four queries, which share each load of a key."""
    for k in range(keys.shape[1]):
        s0[k] = F32(0.0)
        s1[k] = F32(0.0)
        s2[k] = F32(0.0)
        s3[k] = F32(0.0)
    whole = keys.shape[0] // 4 * 4
    for d in range(0, whole, 4):
        a0, a1, a2, a3 = q[0, d], q[0, d + 1], q[0, d + 2], q[0, d + 3]
        b0, b1, b2, b3 = q[1, d], q[1, d + 1], q[1, d + 2], q[1, d + 3]
        c0, c1, c2, c3 = q[2, d], q[2, d + 1], q[2, d + 2], q[2, d + 3]
        e0, e1, e2, e3 = q[3, d], q[3, d + 1], q[3, d + 2], q[3, d + 3]
        for k in range(keys.shape[1]):
            x0, x1, x2, x3 = keys[d, k], keys[d + 1, k], keys[d + 2, k], keys[d + 3, k]
            s0[k] = fma(a3, x3, fma(a2, x2, fma(a1, x1, fma(a0, x0, s0[k]))))
            s1[k] = fma(b3, x3, fma(b2, x2, fma(b1, x1, fma(b0, x0, s1[k]))))
            s2[k] = fma(c3, x3, fma(c2, x2, fma(c1, x1, fma(c0, x0, s2[k]))))
            s3[k] = fma(e3, x3, fma(e2, x2, fma(e1, x1, fma(e0, x0, s3[k]))))
    for d in range(whole, keys.shape[0]):
        for k in range(keys.shape[1]):
            s0[k] = fma(q[0, d], keys[d, k], s0[k])
            s1[k] = fma(q[1, d], keys[d, k], s1[k])
            s2[k] = fma(q[2, d], keys[d, k], s2[k])
            s3[k] = fma(q[3, d], keys[d, k], s3[k])


@njit(**JIT)
def _mix_1(weights, values, out):  # type: ignore[no-untyped-def]
    """``out += weights @ values``, summed in the order of k; ``values [K, Dh]``."""
    whole = values.shape[0] // 4 * 4
    for k in range(0, whole, 4):
        a0, a1, a2, a3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for d in range(values.shape[1]):
            out[d] = fma(
                a3,
                values[k + 3, d],
                fma(a2, values[k + 2, d], fma(a1, values[k + 1, d], fma(a0, values[k, d], out[d]))),
            )
    for k in range(whole, values.shape[0]):
        for d in range(values.shape[1]):
            out[d] = fma(weights[k], values[k, d], out[d])


@njit(**JIT)
def _mix_4(w0, w1, w2, w3, values, out):  # type: ignore[no-untyped-def]
    """:func:`_mix_1` for four queries, which share each load of a value; ``out [4, Dh]``."""
    o0, o1, o2, o3 = out[0], out[1], out[2], out[3]
    whole = values.shape[0] // 4 * 4
    for k in range(0, whole, 4):
        a0, a1, a2, a3 = w0[k], w0[k + 1], w0[k + 2], w0[k + 3]
        b0, b1, b2, b3 = w1[k], w1[k + 1], w1[k + 2], w1[k + 3]
        c0, c1, c2, c3 = w2[k], w2[k + 1], w2[k + 2], w2[k + 3]
        e0, e1, e2, e3 = w3[k], w3[k + 1], w3[k + 2], w3[k + 3]
        for d in range(values.shape[1]):
            x0, x1, x2, x3 = values[k, d], values[k + 1, d], values[k + 2, d], values[k + 3, d]
            o0[d] = fma(a3, x3, fma(a2, x2, fma(a1, x1, fma(a0, x0, o0[d]))))
            o1[d] = fma(b3, x3, fma(b2, x2, fma(b1, x1, fma(b0, x0, o1[d]))))
            o2[d] = fma(c3, x3, fma(c2, x2, fma(c1, x1, fma(c0, x0, o2[d]))))
            o3[d] = fma(e3, x3, fma(e2, x2, fma(e1, x1, fma(e0, x0, o3[d]))))
    for k in range(whole, values.shape[0]):
        for d in range(values.shape[1]):
            o0[d] = fma(w0[k], values[k, d], o0[d])
            o1[d] = fma(w1[k], values[k, d], o1[d])
            o2[d] = fma(w2[k], values[k, d], o2[d])
            o3[d] = fma(w3[k], values[k, d], o3[d])


@njit(**JIT)
def _weigh(scores, seen, width, lanes):  # type: ignore[no-untyped-def]
    """Scores of ``seen`` keys -> ``exp(score - max)``, zero from there to ``width``; returns their sum."""
    for k in range(seen, width):
        scores[k] = F32(-np.inf)
    for j in range(LANES):
        lanes[j] = scores[j]
    for i in range(LANES, width, LANES):
        for j in range(LANES):
            lanes[j] = max(lanes[j], scores[i + j])
    top = lanes[0]
    for j in range(1, LANES):
        top = max(top, lanes[j])
    for k in range(width):
        scores[k] = exp(max(scores[k] - top, F32(-87.0)))
    for k in range(seen, width):
        scores[k] = F32(0.0)
    for j in range(LANES):
        lanes[j] = scores[j]
    for i in range(LANES, width, LANES):
        for j in range(LANES):
            lanes[j] += scores[i + j]
    return sum_lanes(lanes)


@njit(**JIT)
def attend(  # type: ignore[no-untyped-def]
    q, keys, values, pages, starts, counts, cached, page_size, scale, out, scores, first, last
):
    """Causal attention of packed rows over paged keys and values.

    Args:
        q: ``[T, heads * Dh]``.
        keys: ``[kv_heads, blocks, Dh, block]``.
        values: ``[kv_heads, slots, Dh]``.
        pages: int64 ``[S, P]``.
        starts: int64 ``[S]``; this and the next two as in :class:`wedlm_core.attention.PackedRows`.
        counts: int64 ``[S]``.
        cached: int64 ``[S]``.
        page_size: tokens per page, a multiple of the block.
        scale: of the scores.
        out: ``[T, heads * Dh]``.
        scores: scratch ``[4, width]``, width the longest context rounded up to whole blocks and to 16.
        first: sequence to begin with.
        last: sequence to end before.
    """
    kv_heads, _, dim, block = keys.shape
    group = q.shape[1] // (kv_heads * dim)
    queries = np.empty((4, dim), dtype=np.float32)
    mixed = np.empty((4, dim), dtype=np.float32)
    shares, lanes = np.empty(4, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    span = max(block, LANES)
    for s in range(first, last):
        total = counts[s] * group
        for h in range(kv_heads):
            for m in range(0, total, 4):
                # Four queries at a time, or the one to three that are left.
                together = min(4, total - m)
                longest = cached[s] + (m + together - 1) // group + 1
                blocks = (longest + block - 1) // block
                width = (blocks * block + span - 1) // span * span
                for i in range(together):
                    row, head = starts[s] + (m + i) // group, h * group + (m + i) % group
                    for d in range(dim):
                        queries[i, d] = q[row, head * dim + d] * scale
                        mixed[i, d] = F32(0.0)
                for b in range(blocks):
                    slot = pages[s, b * block // page_size] * page_size + b * block % page_size
                    part = keys[h, slot // block]
                    at = slice(b * block, (b + 1) * block)
                    if together == 4:
                        _scores_4(queries, part, scores[0, at], scores[1, at], scores[2, at], scores[3, at])
                    else:
                        for i in range(together):
                            _scores_1(queries[i], part, scores[i, at])
                for i in range(together):
                    seen = cached[s] + (m + i) // group + 1
                    shares[i] = F32(1.0) / _weigh(scores[i], seen, width, lanes)
                for b in range(blocks):
                    slot = pages[s, b * block // page_size] * page_size + b * block % page_size
                    part = values[h, slot : slot + block]
                    at = slice(b * block, (b + 1) * block)
                    if together == 4:
                        _mix_4(scores[0, at], scores[1, at], scores[2, at], scores[3, at], part, mixed)
                    else:
                        for i in range(together):
                            _mix_1(scores[i, at], part, mixed[i])
                for i in range(together):
                    row, head = starts[s] + (m + i) // group, h * group + (m + i) % group
                    for d in range(dim):
                        out[row, head * dim + d] = mixed[i, d] * shares[i]
