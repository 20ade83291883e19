"""Compiled CPU kernels (float32, numba): what lies between the matrix products of a decoder layer.

Written so that a row's result depends on nothing but that row (design, section 6, "batch invariance"): fused
multiply-adds are explicit and nothing else may be contracted or reordered, sums run over 16 fixed lanes, and
loop shapes depend on sizes of the model and on the row's own length only. So any variant of a loop (one
query or four at a time) gives the same bits.

Arrays are C-contiguous numpy views of tensors. All kernels release the interpreter lock and work on the
rows (or sequences) ``first .. last`` of their arguments, so that threads can share a forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

__all__ = ["add_rms_norm", "attend", "place_qkv", "rms_norm", "silu_mul"]

_F = np.float32
_LANES = 16
_JIT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "cache": True}


@intrinsic
def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""
    signature = types.float32(types.float32, types.float32, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return signature, generate


_fma: Any = _fused  # the decorator's type does not show that the typing context is not the caller's to pass


@njit(inline="always", **_JIT)
def _exp(x):  # type: ignore[no-untyped-def]
    """``exp(x)`` for x in [-87, 88], to 1 part in 10^7 (Cody and Waite's reduction, a minimax polynomial)."""
    k = np.floor(_fma(x, _F(1.44269504), _F(0.5)))
    r = _fma(k, _F(2.12194440e-4), _fma(k, _F(-0.693359375), x))
    p = _fma(_F(1.9875691500e-4), r, _F(1.3981999507e-3))
    p = _fma(p, r, _F(8.3334519073e-3))
    p = _fma(p, r, _F(4.1665795894e-2))
    p = _fma(p, r, _F(1.6666665459e-1))
    p = _fma(p, r, _F(5.0000001201e-1))
    p = _fma(p, r * r, r + _F(1.0))
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(**_JIT)
def _inverse_rms(x, eps, lanes):  # type: ignore[no-untyped-def]
    """``1 / sqrt(mean(x^2) + eps)`` of one vector; ``lanes`` is scratch."""
    for j in range(_LANES):
        lanes[j] = _F(0.0)
    whole = len(x) // _LANES * _LANES
    for i in range(0, whole, _LANES):
        for j in range(_LANES):
            lanes[j] = _fma(x[i + j], x[i + j], lanes[j])
    for i in range(whole, len(x)):
        lanes[i - whole] = _fma(x[i], x[i], lanes[i - whole])
    return _F(1.0) / np.sqrt(_sum(lanes) / _F(len(x)) + eps)


@njit(inline="always", **_JIT)
def _sum(lanes):  # type: ignore[no-untyped-def]
    """Sum of 16 lanes as a balanced tree."""
    for j in range(8):
        lanes[j] += lanes[j + 8]
    for j in range(4):
        lanes[j] += lanes[j + 4]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


@njit(**_JIT)
def rms_norm(x, weight, eps, out, first, last):  # type: ignore[no-untyped-def]
    """``out[t] = weight * x[t] / rms(x[t])``; ``x, out [T, D]``."""
    lanes = np.empty(_LANES, dtype=np.float32)
    for t in range(first, last):
        scale = _inverse_rms(x[t], eps, lanes)
        for i in range(x.shape[1]):
            out[t, i] = weight[i] * (x[t, i] * scale)


@njit(**_JIT)
def add_rms_norm(x, delta, weight, eps, out, first, last):  # type: ignore[no-untyped-def]
    """``x += delta``, then :func:`rms_norm`."""
    lanes = np.empty(_LANES, dtype=np.float32)
    for t in range(first, last):
        for i in range(x.shape[1]):
            x[t, i] += delta[t, i]
        scale = _inverse_rms(x[t], eps, lanes)
        for i in range(x.shape[1]):
            out[t, i] = weight[i] * (x[t, i] * scale)


@njit(**_JIT)
def silu_mul(gate_up, out, first, last):  # type: ignore[no-untyped-def]
    """``out = silu(gate) * up``; ``gate_up [T, 2 * I]`` (gate first), ``out [T, I]``."""
    width = out.shape[1]
    for t in range(first, last):
        for i in range(width):
            gate = gate_up[t, i]
            bounded = min(max(-gate, _F(-87.0)), _F(88.0))
            out[t, i] = gate / (_F(1.0) + _exp(bounded)) * gate_up[t, width + i]


@njit(**_JIT)
def _norm_rotate(x, weight, eps, cos, sin, out, lanes):  # type: ignore[no-untyped-def]
    """One head: the optional norm (an empty weight: none), then the rotation; halves form the pairs."""
    half = len(x) // 2
    if len(weight):
        scale = _inverse_rms(x, eps, lanes)
        for i in range(half):
            low, high = weight[i] * (x[i] * scale), weight[half + i] * (x[half + i] * scale)
            out[i] = low * cos[i] - high * sin[i]
            out[half + i] = high * cos[i] + low * sin[i]
    else:
        for i in range(half):
            out[i] = x[i] * cos[i] - x[half + i] * sin[i]
            out[half + i] = x[half + i] * cos[i] + x[i] * sin[i]


@njit(**_JIT)
def place_qkv(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, eps, cos, sin, positions, slots, heads, q_out, keys, values, first, last
):
    """Norm and rotate queries and keys, write keys and values to the pool.

    Args:
        qkv: ``[T, (heads + 2 * kv_heads) * Dh]``.
        q_weight: ``[Dh]``, empty where the model has no q/k norm.
        k_weight: the same for keys.
        eps: of the norm.
        cos: ``[positions, Dh / 2]``.
        sin: the same.
        positions: int64 ``[T]``, logical position of each row.
        slots: int64 ``[T]``, KV slot of each row.
        heads: query heads.
        q_out: ``[T, heads * Dh]``.
        keys: ``[kv_heads, blocks, Dh, block]``.
        values: ``[kv_heads, slots, Dh]``.
        first: row to begin with.
        last: row to end before.
    """
    kv_heads, _, dim, block = keys.shape
    key, lanes = np.empty(dim, dtype=np.float32), np.empty(_LANES, dtype=np.float32)
    for t in range(first, last):
        c, s = cos[positions[t]], sin[positions[t]]
        for h in range(heads):
            span = slice(h * dim, (h + 1) * dim)
            _norm_rotate(qkv[t, span], q_weight, eps, c, s, q_out[t, span], lanes)
        number, place = slots[t] // block, slots[t] % block
        for h in range(kv_heads):
            at = (heads + h) * dim
            _norm_rotate(qkv[t, at : at + dim], k_weight, eps, c, s, key, lanes)
            for i in range(dim):
                keys[h, number, i, place] = key[i]
            at += kv_heads * dim
            for i in range(dim):
                values[h, slots[t], i] = qkv[t, at + i]


@njit(**_JIT)
def _scores_1(q, keys, out):  # type: ignore[no-untyped-def]
    """``out[k] = q . keys[:, k]`` over one block, summed in the order of d; ``keys [Dh, block]``."""
    whole = keys.shape[0] // 4 * 4
    for k in range(keys.shape[1]):
        out[k] = _F(0.0)
    for d in range(0, whole, 4):
        a0, a1, a2, a3 = q[d], q[d + 1], q[d + 2], q[d + 3]
        for k in range(keys.shape[1]):
            out[k] = _fma(
                a3, keys[d + 3, k], _fma(a2, keys[d + 2, k], _fma(a1, keys[d + 1, k], _fma(a0, keys[d, k], out[k])))
            )
    for d in range(whole, keys.shape[0]):
        for k in range(keys.shape[1]):
            out[k] = _fma(q[d], keys[d, k], out[k])


@njit(**_JIT)
def _scores_4(q, keys, s0, s1, s2, s3):  # type: ignore[no-untyped-def]
    """:func:`_scores_1` for four queries, which share each load of a key."""
    for k in range(keys.shape[1]):
        s0[k] = _F(0.0)
        s1[k] = _F(0.0)
        s2[k] = _F(0.0)
        s3[k] = _F(0.0)
    whole = keys.shape[0] // 4 * 4
    for d in range(0, whole, 4):
        a0, a1, a2, a3 = q[0, d], q[0, d + 1], q[0, d + 2], q[0, d + 3]
        b0, b1, b2, b3 = q[1, d], q[1, d + 1], q[1, d + 2], q[1, d + 3]
        c0, c1, c2, c3 = q[2, d], q[2, d + 1], q[2, d + 2], q[2, d + 3]
        e0, e1, e2, e3 = q[3, d], q[3, d + 1], q[3, d + 2], q[3, d + 3]
        for k in range(keys.shape[1]):
            x0, x1, x2, x3 = keys[d, k], keys[d + 1, k], keys[d + 2, k], keys[d + 3, k]
            s0[k] = _fma(a3, x3, _fma(a2, x2, _fma(a1, x1, _fma(a0, x0, s0[k]))))
            s1[k] = _fma(b3, x3, _fma(b2, x2, _fma(b1, x1, _fma(b0, x0, s1[k]))))
            s2[k] = _fma(c3, x3, _fma(c2, x2, _fma(c1, x1, _fma(c0, x0, s2[k]))))
            s3[k] = _fma(e3, x3, _fma(e2, x2, _fma(e1, x1, _fma(e0, x0, s3[k]))))
    for d in range(whole, keys.shape[0]):
        for k in range(keys.shape[1]):
            s0[k] = _fma(q[0, d], keys[d, k], s0[k])
            s1[k] = _fma(q[1, d], keys[d, k], s1[k])
            s2[k] = _fma(q[2, d], keys[d, k], s2[k])
            s3[k] = _fma(q[3, d], keys[d, k], s3[k])


@njit(**_JIT)
def _mix_1(weights, values, out):  # type: ignore[no-untyped-def]
    """``out += weights @ values``, summed in the order of k; ``values [K, Dh]``."""
    whole = values.shape[0] // 4 * 4
    for k in range(0, whole, 4):
        a0, a1, a2, a3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for d in range(values.shape[1]):
            out[d] = _fma(
                a3,
                values[k + 3, d],
                _fma(a2, values[k + 2, d], _fma(a1, values[k + 1, d], _fma(a0, values[k, d], out[d]))),
            )
    for k in range(whole, values.shape[0]):
        for d in range(values.shape[1]):
            out[d] = _fma(weights[k], values[k, d], out[d])


@njit(**_JIT)
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
            o0[d] = _fma(a3, x3, _fma(a2, x2, _fma(a1, x1, _fma(a0, x0, o0[d]))))
            o1[d] = _fma(b3, x3, _fma(b2, x2, _fma(b1, x1, _fma(b0, x0, o1[d]))))
            o2[d] = _fma(c3, x3, _fma(c2, x2, _fma(c1, x1, _fma(c0, x0, o2[d]))))
            o3[d] = _fma(e3, x3, _fma(e2, x2, _fma(e1, x1, _fma(e0, x0, o3[d]))))
    for k in range(whole, values.shape[0]):
        for d in range(values.shape[1]):
            o0[d] = _fma(w0[k], values[k, d], o0[d])
            o1[d] = _fma(w1[k], values[k, d], o1[d])
            o2[d] = _fma(w2[k], values[k, d], o2[d])
            o3[d] = _fma(w3[k], values[k, d], o3[d])


@njit(**_JIT)
def _weigh(scores, seen, width, lanes):  # type: ignore[no-untyped-def]
    """Scores of ``seen`` keys -> ``exp(score - max)``, zero from there to ``width``; returns their sum."""
    for k in range(seen, width):
        scores[k] = _F(-np.inf)
    for j in range(_LANES):
        lanes[j] = scores[j]
    for i in range(_LANES, width, _LANES):
        for j in range(_LANES):
            lanes[j] = max(lanes[j], scores[i + j])
    top = lanes[0]
    for j in range(1, _LANES):
        top = max(top, lanes[j])
    for k in range(width):
        scores[k] = _exp(max(scores[k] - top, _F(-87.0)))
    for k in range(seen, width):
        scores[k] = _F(0.0)
    for j in range(_LANES):
        lanes[j] = scores[j]
    for i in range(_LANES, width, _LANES):
        for j in range(_LANES):
            lanes[j] += scores[i + j]
    return _sum(lanes)


@njit(**_JIT)
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
    shares, lanes = np.empty(4, dtype=np.float32), np.empty(_LANES, dtype=np.float32)
    span = max(block, _LANES)
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
                        mixed[i, d] = _F(0.0)
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
                    shares[i] = _F(1.0) / _weigh(scores[i], seen, width, lanes)
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
