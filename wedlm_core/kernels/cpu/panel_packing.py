"""Copies rows of a weight into panels (:mod:`.panels`)."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["pack_units"]

_TOGETHER = 16  # units along the inputs: a cache line of each row that is read


@kernel
def pack_units(units, flip, panels, first, last):  # type: ignore[no-untyped-def]
    """``panels[p, h, k, n] = units[64 * p + 32 * h + n, k] ^ flip``, zeros ``^ flip`` where there is no such unit.

    Args:
        units: uint32 ``[O, U]``, or uint16 where a unit is stored in two bytes: the units of each output's weights.
        flip: of the same dtype.
        panels: ``[P, 2, depth, 32]``, of the same dtype.
        first: first panel to write.
        last: one past the last panel to write.
    """
    outputs, own = units.shape
    _, _, depth, half = panels.shape
    for p in range(first, last):
        for h in range(2):
            start = (2 * p + h) * half
            there = max(0, min(half, outputs - start))
            for k in range(0, depth, _TOGETHER):
                end = min(k + _TOGETHER, own)
                for n in range(there):
                    for i in range(k, end):
                        panels[p, h, i, n] = units[start + n, i] ^ flip
            for i in range(depth):
                for n in range(there if i < own else 0, half):
                    panels[p, h, i, n] = flip
