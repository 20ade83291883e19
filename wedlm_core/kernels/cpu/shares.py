"""Which part of a forward each thread of a team computes. Torch-free."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["LEAST_ROWS", "by_rows", "part_of", "rows_of"]

LEAST_ROWS = 4
"""Rows for each member from which members take rows where there is a choice: fewer are shared by heads."""


@kernel
def part_of(count, me, members):  # type: ignore[no-untyped-def]
    """The items of a member: ``(first, last)``."""
    return count * me // members, count * (me + 1) // members


@kernel
def by_rows(task, rows, members):  # type: ignore[no-untyped-def]
    """Whether each member computes all outputs of its part of the rows, not some outputs of all rows.

    Then no member reads what another has written but in attention: they need not wait for each other, and no cache line
    goes from core to core. But each of them reads all weights. So it pays where rows are many.
    """
    many = task.apart > 0 and members * max(task.apart, LEAST_ROWS, task.row_block) <= rows
    return many and members > 1 and task.layers > 0  # behind a product alone, nothing else waits for all


@kernel
def rows_of(task, rows, me, members):  # type: ignore[no-untyped-def]
    """The rows of a member, ``(first, last)``; by rows whole blocks in which they are held."""
    block = task.row_block if by_rows(task, rows, members) else 1
    first, last = part_of((rows + block - 1) // block, me, members)
    return min(first * block, rows), min(last * block, rows)
