"""Copies rows of a weight into panels (:mod:`.panel_products`), and some of them back."""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32

_TOGETHER = 16  # units along the inputs: a cache line of each row that is read


@kernel
def pack_units(units, factor, flip, panels, start, first, last):  # type: ignore[no-untyped-def]
    """Copy units of weights into the places of outputs ``start + first ... start + last - 1``.

    Output o of panels of two halves is row ``o % 32`` of half ``o // 32 % 2`` of panel ``o // 64``. Units of its panel
    beyond its own become those of zeros. Threads may write different outputs at the same time.

    Args:
        units: uint32 or uint16 ``[R, U]``: of each output's weights.
        factor: uint32, of each: 1, or 2**16 to make the bits of bfloat16 those of float32.
        flip: uint32, combined with each by an exclusive or; the units of zeros.
        panels: uint32 or uint16 ``[P, halves, depth, outputs of a half]``, written.
        start: the output of row 0.
        first: first row to copy.
        last: one past the last row to copy.
    """
    own, (_, halves, depth, half) = units.shape[1], panels.shape
    low, high = start + first, start + last
    for q in range(low // half, (high + half - 1) // half):
        p, h, begin = q // halves, q % halves, q * half
        to, end = max(low - begin, 0), min(high - begin, half)
        for k in range(0, own, _TOGETHER):
            stop = min(k + _TOGETHER, own)
            for n in range(to, end):
                for i in range(k, stop):
                    panels[p, h, i, n] = (units[begin + n - start, i] * factor) ^ flip
        for i in range(own, depth):
            for n in range(to, end):
                panels[p, h, i, n] = flip


@kernel
def first_number(panels, output):  # type: ignore[no-untyped-def]
    """Where an output's first number is among all of ``panels [P, halves, depth, outputs of a half, numbers]``.

    -1 where the output has no place in them.
    """
    count, halves, depth, half, per = panels.shape
    if output < 0 or output >= count * halves * half:
        return -1
    return output // half * depth * half * per + output % half * per


@kernel
def look_up(panels, offset, scale, ids, out, first, last):  # type: ignore[no-untyped-def]
    """``out[t] = (weight[ids[t]] - offset) * scale[ids[t]]`` as float32.

    Args:
        panels: float32, uint8 or int8 ``[P, 2, depth, 32, numbers of a unit]``.
        offset: of the stored numbers.
        scale: float32, of each output; empty where all are 1.
        ids: int64 ``[T]``, outputs.
        out: ``[T, I]``, written.
        first: first row to write.
        last: one past the last row to write.

    Returns:
        False where an id has no place in the panels; rows from there on are not written.
    """
    _, _, _, half, per = panels.shape
    numbers, size, less = panels.reshape(panels.size), out.shape[1], F32(offset)
    for t in range(first, last):
        at = first_number(panels, ids[t])
        if at < 0:
            return False
        own = scale[ids[t]] if len(scale) > 0 else F32(1.0)
        if per == 1:  # the same, several times as fast
            for i in range(size):
                out[t, i] = (F32(numbers[at + i * half]) - less) * own
            continue
        for i in range(0, size - per + 1, per):
            for j in range(per):
                out[t, i + j] = (F32(numbers[at + j]) - less) * own
            at += half * per
        for j in range(size % per):
            out[t, size - size % per + j] = (F32(numbers[at + j]) - less) * own
    return True


@kernel
def look_up_bfloat16(panels, ids, bits, first, last):  # type: ignore[no-untyped-def]
    """:func:`look_up` of bfloat16: ``panels`` is uint16, ``bits`` uint32 ``[T, I]``, those of the float32 result."""
    _, _, _, half, per = panels.shape
    numbers, size = panels.reshape(panels.size), bits.shape[1]
    for t in range(first, last):
        at = first_number(panels, ids[t])
        if at < 0:
            return False
        for i in range(0, size - per + 1, per):
            for j in range(per):
                bits[t, i + j] = np.uint32(numbers[at + j]) << np.uint32(16)
            at += half * per
        for j in range(size % per):
            bits[t, size - size % per + j] = np.uint32(numbers[at + j]) << np.uint32(16)
    return True
