"""Looks at what the next forward of running sequences takes, in one pass: most forwards need no decision."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["all_decode", "any_short"]


@kernel
def any_short(slots, context, cached, rows, capacity):  # type: ignore[no-untyped-def]
    """Whether a sequence whose context is cached has no room for its decode rows.

    Args:
        slots: int64 ``[R]``, running ones.
        context: int64 ``[slots]``, tokens that have to be cached before decode rows run.
        cached: int64 ``[slots]``, tokens that are.
        rows: int64 ``[slots]``, decode rows of the next forward.
        capacity: int64 ``[slots]``, KV entries that there is room for.
    """
    for slot in slots:  # noqa: SIM110  # Numba compiles no generators here
        if cached[slot] == context[slot] and cached[slot] + rows[slot] > capacity[slot]:
            return True
    return False


@kernel
def all_decode(slots, context, cached, rows, held, group, budget, own_slot, own_cached, own_rows):  # type: ignore[no-untyped-def]
    """Whether all sequences decode in the next forward, in one group and within the row budget.

    Args:
        slots: int64 ``[R]``, running ones.
        context: as for :func:`any_short`.
        cached: likewise.
        rows: likewise.
        held: bool ``[slots]``, sequences that wait.
        group: int64 ``[slots]``, number of the decoding implementation.
        budget: rows at most.
        own_slot: int64 ``[R]``, written: the slots.
        own_cached: int64 ``[R]``, written: ``cached`` of these.
        own_rows: int64 ``[R]``, written: ``rows`` of these.
    """
    total = 0
    for r in range(len(slots)):
        slot = slots[r]
        if rows[slot] == 0 or cached[slot] != context[slot] or held[slot] or group[slot] != group[slots[0]]:
            return False
        own_slot[r], own_cached[r], own_rows[r] = slot, cached[slot], rows[slot]
        total += rows[slot]
    return total <= budget
