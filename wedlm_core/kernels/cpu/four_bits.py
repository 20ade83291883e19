"""Rounding weights to 4 bits, and expanding them to 8-bit integers on the way to a product of these."""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32

__all__ = ["expand_rows", "round_groups"]

# As in wedlm_core.model.int4.
_HALF, _GROUP = 16, 32
_LARGEST, _MOST = 7, 18
_SMALLEST = 1e-12
_SHARES = (1.0, 0.9, 0.8, 0.7)


@kernel
def expand_rows(nibble, multiplier, out, first, last):  # type: ignore[no-untyped-def]
    """Write the integers that nibbles stand for; :func:`wedlm_core.model.int4.expanded` is the oracle.

    Args:
        nibble: uint8 ``[O, I / 2]``.
        multiplier: uint8 ``[O, I / 32]``.
        out: int8 ``[O, I]``, written.
        first: first row to expand.
        last: one past the last row to expand.
    """
    groups = multiplier.shape[1]
    for o in range(first, last):
        for g in range(groups):
            own, at, to = np.int8(multiplier[o, g]), g * _HALF, 2 * g * _HALF
            for j in range(_HALF):
                out[o, to + j] = np.int8(np.int8(nibble[o, at + j] & 15) - 8) * own
            for j in range(_HALF):
                out[o, to + _HALF + j] = np.int8(np.int8(nibble[o, at + j] >> 4) - 8) * own


@kernel
def round_groups(x, nibble, multiplier, scale, first, last):  # type: ignore[no-untyped-def]
    """Round rows of weights to 4 bits; see :func:`wedlm_core.model.int4.rounded_to_nibbles`, the oracle.

    Args:
        x: float32 ``[R, I]``.
        nibble: uint8 ``[R, I / 2]``, written.
        multiplier: uint8 ``[R, I / 32]``, written.
        scale: ``[R]``, written.
        first: first row to round.
        last: one past the last row to round.
    """
    groups = multiplier.shape[1]
    units, tried, best = np.empty(_GROUP, np.float32), np.empty(_GROUP, np.float32), np.empty(_GROUP, np.float32)
    off = np.empty(_GROUP, np.float32)
    for r in range(first, last):
        top, faults = F32(0.0), F32(0.0)
        for i in range(groups * _GROUP):
            top = max(top, abs(x[r, i]))
            faults += x[r, i] - x[r, i]  # no number, if the row has such
        own = max(top, F32(_SMALLEST)) / F32(_LARGEST * _MOST)
        scale[r] = own + faults
        for g in range(groups):
            largest = F32(0.0)
            for j in range(_GROUP):
                largest = max(largest, abs(x[r, g * _GROUP + j]))
                units[j] = x[r, g * _GROUP + j] / own
            most, chosen, least = largest / own / F32(_LARGEST), F32(1.0), np.float64(np.inf)
            for share in _SHARES:
                step = min(max(np.ceil(most * F32(share)), F32(1.0)), F32(_MOST))
                for j in range(_GROUP):
                    # Adding and subtracting 1.5 * 2^23 rounds as rint does, and the compiler does many at once.
                    whole = (units[j] / step + F32(12582912.0)) - F32(12582912.0)
                    tried[j] = min(max(whole, F32(-_LARGEST)), F32(_LARGEST))
                    off[j] = tried[j] * step - units[j]
                error, other = np.float64(0.0), np.float64(0.0)
                for j in range(_HALF):
                    error += np.float64(off[j]) * np.float64(off[j])
                    other += np.float64(off[j + _HALF]) * np.float64(off[j + _HALF])
                if error + other < least:
                    least, chosen = error + other, step
                    best[:] = tried
            multiplier[r, g] = np.uint8(chosen)
            for j in range(_HALF):
                low, high = np.uint8(best[j] + F32(8.0)), np.uint8(best[j + _HALF] + F32(8.0))
                nibble[r, g * _HALF + j] = low | (high << np.uint8(4))
