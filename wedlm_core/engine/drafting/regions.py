"""Pieces of one arena for texts of any length: a buddy allocator over powers of two. Torch-free."""

from __future__ import annotations

__all__ = ["Regions"]


class Regions:
    """Free pieces of ``[0, 1 << bits)``; a piece of ``1 << b`` places begins at a multiple of its size.

    Args:
        bits: log2 of the whole.
        least: log2 of the smallest piece.
    """

    def __init__(self, bits: int, least: int) -> None:
        self._bits, self._least = bits, least
        self._free: dict[int, set[int]] = {b: set() for b in range(least, bits + 1)}
        self._free[bits].add(0)

    def allocate(self, bits: int) -> int | None:
        """The lowest free piece of the smallest sufficient size, cut down to ``1 << bits`` places; None if none is."""
        bits = max(bits, self._least)
        found = next((b for b in range(bits, self._bits + 1) if self._free[b]), None)
        if found is None:
            return None
        start = min(self._free[found])
        self._free[found].remove(start)
        for half in range(found - 1, bits - 1, -1):
            self._free[half].add(start + (1 << half))
        return start

    def release(self, start: int, bits: int) -> None:
        """Give a piece back; it is joined with its neighbour where that is free too."""
        while bits < self._bits and start ^ (1 << bits) in self._free[bits]:
            self._free[bits].remove(start ^ (1 << bits))
            start &= ~(1 << bits)
            bits += 1
        self._free[bits].add(start)

    def largest(self) -> int:
        """log2 of the largest free piece; -1 where nothing is free."""
        return max((b for b, starts in self._free.items() if starts), default=-1)
