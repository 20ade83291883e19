"""Which part of a forward each thread of a team computes. Torch-free."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel

LEAST_ROWS = 4
"""With so many rows for each member, members take rows where there is a choice: fewer are shared by heads."""


@kernel
def part_of(count, me, members):  # type: ignore[no-untyped-def]
    """The items of a member: ``(first, last)``."""
    return count * me // members, count * (me + 1) // members


@kernel
def by_rows(task, rows, members):  # type: ignore[no-untyped-def]
    """Whether each member computes all outputs of its part of the rows, not some outputs of all rows.

    Then no member reads the output of another but in attention: they need not wait for each other, and no cache line
    goes from core to core. But each of them reads all weights. So it pays where rows are many.
    """
    many = task.apart > 0 and members * max(task.apart, LEAST_ROWS) <= rows
    return many and members > 1 and task.layers > 0  # after a product alone, nothing else waits for all
