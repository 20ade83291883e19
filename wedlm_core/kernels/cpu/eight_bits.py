"""Rows of 8-bit integers, and back: around products and in front of them."""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32
from wedlm_core.kernels.cpu.vector import LANES, largest, load, spread, store, total

_LARGEST, _SMALLEST = 127.0, 1e-12  # as in wedlm_core.kernels.rounding.rounded


@kernel
def row_scale(x, at, size):  # type: ignore[no-untyped-def]
    """The factor of ``size`` numbers of x from ``at`` on before they are rounded to int8, and their scale.

    The scale is NaN where one of them is NaN or infinite.
    """
    lanes, faults = spread(F32(0.0)), spread(F32(0.0))
    for i in range(0, size, LANES):
        part = load(x, at + i, size - i, F32(0.0))
        lanes = max(lanes, max(part, -part))
        faults = faults + (part - part)  # no number, if the part has such
    top = max(largest(lanes), F32(_SMALLEST))
    return F32(_LARGEST) / top, top / F32(_LARGEST) + total(faults)


@kernel
def round_rows(x, byte, scale, first, last):  # type: ignore[no-untyped-def]
    """Round each row to int8 at a scale of its own; see :func:`wedlm_core.kernels.rounding.rounded`, its oracle.

    A row with a NaN or an infinity has the scale NaN, so that no sum of it is a number.

    Args:
        x: ``[T, I]``.
        byte: int8 or int16 ``[T, I']``, written; zero from column I on.
        scale: ``[T]``, written.
        first: first row to compute.
        last: one past the last row to compute.
    """
    size = x.shape[1]
    for t in range(first, last):
        inverse, scale[t] = row_scale(x, t * size, size)
        for i in range(size):
            byte[t, i] = np.int8(np.rint(x[t, i] * inverse))
        for i in range(size, byte.shape[1]):
            byte[t, i] = 0


@kernel
def round_narrow_rows(bits, byte, scale, first, last):  # type: ignore[no-untyped-def]
    """:func:`round_rows` of bfloat16, given by its bits: uint16 ``[T, I]``."""
    size = bits.shape[1]
    wide = np.empty((1, size), dtype=np.float32)
    for t in range(first, last):
        for i in range(0, size, LANES):
            store(wide, i, size - i, load(bits, t * size + i, size - i, F32(0.0)))
        round_rows(wide, byte[t : t + 1], scale[t : t + 1], 0, 1)


@kernel
def sum_rows(byte, factor, out, first, last):  # type: ignore[no-untyped-def]
    """``out[t] = factor * sum(byte[t])``, int32."""
    for t in range(first, last):
        total = np.int32(0)
        for i in range(byte.shape[1]):
            total += np.int32(byte[t, i])
        out[t] = np.int32(factor) * total


@kernel
def widen_rows(byte, scale, ids, out, first, last):  # type: ignore[no-untyped-def]
    """Rows ``ids`` of an int8 table ``[V, D]`` with a scale per row, as float32 ``[T, D]``."""
    size = out.shape[1]
    for t in range(first, last):
        token, own = ids[t], scale[ids[t]]
        for i in range(size):
            out[t, i] = F32(byte[token, i]) * own
