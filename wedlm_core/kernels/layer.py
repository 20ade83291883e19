"""Norms, rotation, KV writes and the gate of a decoder layer."""

from __future__ import annotations

import numpy as np
from numba import njit

from wedlm_core.kernels.scalar import F32, JIT, LANES, exp, fma, sum_lanes

__all__ = ["add_rms_norm", "place_qkv", "rms_norm", "silu_mul"]


@njit(**JIT)
def _inverse_rms(x, eps, lanes):  # type: ignore[no-untyped-def]
    """``1 / sqrt(mean(x^2) + eps)`` of one vector; ``lanes`` is scratch."""
    for j in range(LANES):
        lanes[j] = F32(0.0)
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            lanes[j] = fma(x[i + j], x[i + j], lanes[j])
    for i in range(whole, len(x)):
        lanes[i - whole] = fma(x[i], x[i], lanes[i - whole])
    return F32(1.0) / np.sqrt(sum_lanes(lanes) / F32(len(x)) + eps)


@njit(**JIT)
def rms_norm(x, weight, eps, out, first, last):  # type: ignore[no-untyped-def]
    """``out[t] = weight * x[t] / rms(x[t])``; ``x, out [T, D]``."""
    lanes = np.empty(LANES, dtype=np.float32)
    for t in range(first, last):
        scale = _inverse_rms(x[t], eps, lanes)
        for i in range(x.shape[1]):
            out[t, i] = weight[i] * (x[t, i] * scale)


@njit(**JIT)
def add_rms_norm(x, delta, weight, eps, out, first, last):  # type: ignore[no-untyped-def]
    """``x += delta``, then :func:`rms_norm`."""
    lanes = np.empty(LANES, dtype=np.float32)
    for t in range(first, last):
        for i in range(x.shape[1]):
            x[t, i] += delta[t, i]
        scale = _inverse_rms(x[t], eps, lanes)
        for i in range(x.shape[1]):
            out[t, i] = weight[i] * (x[t, i] * scale)


@njit(**JIT)
def silu_mul(gate_up, out, first, last):  # type: ignore[no-untyped-def]
    """``out = silu(gate) * up``; ``gate_up [T, 2 * I]`` (gate first), ``out [T, I]``."""
    width = out.shape[1]
    for t in range(first, last):
        for i in range(width):
            gate = gate_up[t, i]
            bounded = min(max(-gate, F32(-87.0)), F32(88.0))
            out[t, i] = gate / (F32(1.0) + exp(bounded)) * gate_up[t, width + i]


@njit(**JIT)
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


@njit(**JIT)
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
    key, lanes = np.empty(dim, dtype=np.float32), np.empty(LANES, dtype=np.float32)
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
