"""The operations of a decoder layer between matrix products: norms, rotary embedding, KV writes, gated activation."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.eight_bits import row_scale
from wedlm_core.kernels.cpu.scalar import F32, exp
from wedlm_core.kernels.cpu.vector import LANES, fma, load, prefetch, put, spread, store, total


@kernel
def _inverse_rms(x, at, size, eps):  # type: ignore[no-untyped-def]
    """``1 / sqrt(mean(v^2) + eps)`` of the ``size`` elements v of x from ``at`` on."""
    lanes = spread(F32(0.0))
    for i in range(0, size, LANES):
        part = load(x, at + i, size - i, F32(0.0))
        lanes = fma(part, part, lanes)
    return F32(1.0) / np.sqrt(total(lanes) / F32(size) + eps)


@kernel
def rms_norm(x, weight, eps, out, first, last):  # type: ignore[no-untyped-def]
    """``out[t] = weight * x[t] / rms(x[t])``; ``x, out [T, D]``."""
    size = x.shape[1]
    for t in range(first, last):
        scale = _inverse_rms(x, t * size, size, eps)
        for i in range(0, size, LANES):
            at, left = t * size + i, size - i
            store(out, at, left, load(weight, i, left, F32(0.0)) * (load(x, at, left, F32(0.0)) * scale))


@kernel
def add_rms_norm(x, delta, weight, eps, out, places, first, last):  # type: ignore[no-untyped-def]
    """``x += delta``, then :func:`rms_norm`.

    ``places`` (int64) are the rows of x that those of delta and out belong to; empty where they are the same.
    """
    size = x.shape[1]
    for t in range(first, last):
        begin, row = t * size, (places[t] if len(places) > 0 else t) * size
        for i in range(0, size, LANES):
            left = size - i
            store(x, row + i, left, load(x, row + i, left, F32(0.0)) + load(delta, begin + i, left, F32(0.0)))
        scale = _inverse_rms(x, row, size, eps)
        for i in range(0, size, LANES):
            left = size - i
            scaled = load(x, row + i, left, F32(0.0)) * scale
            store(out, begin + i, left, load(weight, i, left, F32(0.0)) * scaled)


@kernel
def silu_mul(gate_up, out, first, last):  # type: ignore[no-untyped-def]
    """``out = silu(gate) * up``; ``gate_up [T, 2 * I]`` (gate first), ``out [T, I]``."""
    width = out.shape[1]
    for t in range(first, last):
        for i in range(0, width, LANES):
            at, left = 2 * t * width + i, width - i
            gate, up = load(gate_up, at, left, F32(0.0)), load(gate_up, at + width, left, F32(0.0))
            bounded = min(max(-gate, F32(-87.0)), F32(88.0))
            store(out, t * width + i, left, gate / (F32(1.0) + exp(bounded)) * up)


@kernel
def _norm_rotate(x, at, heads, size, weight, eps, cos, sin, angle, out, to):  # type: ignore[no-untyped-def]
    """The heads of one row: the norm (none if the weight is empty), then the rotation of the pairs (i, i + size // 2).

    Heads of ``size`` elements follow each other in x from ``at`` on and in out from ``to`` on. The cosines and sines
    begin at ``angle``.
    """
    half = size // 2
    normed = len(weight) > 0
    for _ in range(heads):
        scale = _inverse_rms(x, at, size, eps) if normed else F32(1.0)
        for i in range(0, half, LANES):
            left = half - i
            low, high = load(x, at + i, left, F32(0.0)), load(x, at + half + i, left, F32(0.0))
            c, s = load(cos, angle + i, left, F32(0.0)), load(sin, angle + i, left, F32(0.0))
            if normed:
                low = load(weight, i, left, F32(0.0)) * (low * scale)
                high = load(weight, half + i, left, F32(0.0)) * (high * scale)
            store(out, to + i, left, low * c - high * s)
            store(out, to + half + i, left, high * c + low * s)
        at, to = at + size, to + size


@kernel
def _neighbours(entries, first, last):  # type: ignore[no-untyped-def]
    """How many rows from ``first`` on have consecutive KV entries."""
    t = first + 1
    while t < last and entries[t] == entries[t - 1] + 1:
        t += 1
    return t - first


def _fit(held, scales, place, x, at, size):  # type: ignore[no-untyped-def]
    """The factor that makes ``size`` numbers of x from ``at`` on fit into the numbers of ``held``.

    Their scale is written to ``scales`` at ``place``, if such numbers have one.
    """


@overload(_fit)
def _fit_of(held, scales, place, x, at, size):  # type: ignore[no-untyped-def]
    if held.dtype == types.int8:

        def by_scale(held, scales, place, x, at, size):  # type: ignore[no-untyped-def]
            inverse, scale = row_scale(x, at, size)
            put(scales, place, scale)
            return inverse

        return by_scale

    def as_they_are(held, scales, place, x, at, size):  # type: ignore[no-untyped-def]
        return F32(1.0)

    return as_they_are


@kernel
def place_heads(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, eps, cos, sin, positions, entries, heads, q_out, keys, values, key_scales, value_scales,
    first, last, low, high,
):  # fmt: skip
    """Norm and rotate queries and keys; write keys and values to the KV pool.

    Of the KV heads ``low .. high - 1`` and the query heads that belong to them.

    Args:
        qkv: ``[T, (heads + 2 * kv_heads) * Dh]``.
        q_weight: ``[Dh]``, empty where the model has no q/k norm.
        k_weight: the same for keys.
        eps: of the norm.
        cos: ``[positions, Dh / 2]``.
        sin: the same.
        positions: int64 ``[T]``, logical position of each row.
        entries: int64 ``[T]``, KV entry of each row.
        heads: query heads.
        q_out: ``[T, heads * Dh]``.
        keys: ``[kv_heads, blocks, Dh, block]``: float32, or the bits of bfloat16 (uint16) or int8; numbers are rounded
            to these.
        values: the same, ``[kv_heads, entries, Dh]``.
        key_scales: ``[kv_heads, entries]``, written for keys in int8: each has a scale of its own
            (:func:`wedlm_core.kernels.rounding.rounded`).
        value_scales: the same of values.
        first: first row to compute.
        last: one past the last row to compute.
        low: first KV head to compute.
        high: one past the last KV head to compute.
    """
    kv_heads, blocks, dim, block = keys.shape
    q_size, kv_size, group = heads * dim, kv_heads * dim, heads // kv_heads
    width, own = q_size + 2 * kv_size, (high - low) * dim
    rotated, inverses = np.empty((LANES, own), dtype=np.float32), np.empty(LANES, dtype=np.float32)
    t = first
    while t < last:
        # Consecutive entries of a block share the cache lines of their keys, which are written element by element.
        number, place = entries[t] // block, entries[t] % block
        count = _neighbours(entries, t, min(last, t + min(LANES, block - place)))
        for h in range(low, high):  # a key has one cache line per element: fetch them all ahead
            for i in range(dim):
                prefetch(keys, ((h * blocks + number) * dim + i) * block + place)
        for r in range(count):
            at, angle, skipped = (t + r) * width, positions[t + r] * (dim // 2), low * group * dim
            to = (t + r) * q_size + skipped
            _norm_rotate(qkv, at + skipped, (high - low) * group, dim, q_weight, eps, cos, sin, angle, q_out, to)
            at += q_size + low * dim
            _norm_rotate(qkv, at, high - low, dim, k_weight, eps, cos, sin, angle, rotated, r * own)
        for h in range(low, high):
            for r in range(count):
                entry = h * values.shape[1] + entries[t + r]
                inverses[r] = _fit(keys, key_scales, entry, rotated, r * own + (h - low) * dim, dim)
            for i in range(dim):
                to = ((h * blocks + number) * dim + i) * block + place
                for r in range(count):
                    put(keys, to + r, rotated[r, (h - low) * dim + i] * inverses[r])
            for r in range(count):
                at, entry = (t + r) * width + q_size + kv_size + h * dim, h * values.shape[1] + entries[t + r]
                inverse = _fit(values, value_scales, entry, qkv, at, dim)
                for i in range(0, dim, LANES):
                    store(values, entry * dim + i, dim - i, load(qkv, at + i, dim - i, F32(0.0)) * inverse)
        t += count
