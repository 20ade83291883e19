"""How the row budget of a forward is spent, in arrays: the readable form of ``spend_rows``."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.scheduling.slots import IntArray, SlotTable

_LAST_GROUP = np.iinfo(np.int64).max


def spent_rows(table: SlotTable, slots_R: IntArray, budget: int, chunk: int | None) -> tuple[IntArray, ...]:
    """Which running sequences take part in the next forward, and with how many rows.

    Args:
        table: of slots.
        slots_R: of running sequences, by age.
        budget: rows at most.
        chunk: prefill rows of a sequence at most.

    Returns:
        int64 ``[S]`` each, in the order of the plan: places among those that run, cached tokens, prefill and decode
        rows.
    """
    cached_R, rows_R = table.cached[slots_R], table.rows[slots_R]
    pending_R = table.context[slots_R] - cached_R
    ready_R = (pending_R == 0) & ~table.held[slots_R]
    decode_R = np.where(ready_R & (np.cumsum(rows_R * ready_R) <= budget), rows_R, 0)
    prefill_R = np.zeros(len(slots_R), dtype=np.int64)
    left = budget - int(decode_R.sum())
    for i in np.flatnonzero(pending_R):
        part = min(int(pending_R[i]), chunk or left, left)
        if part <= 0:
            break
        prefill_R[i] = part
        left -= part
        if part == pending_R[i] and rows_R[i] <= left:
            decode_R[i] = rows_R[i]
            left -= int(rows_R[i])
    chosen = np.flatnonzero(prefill_R + decode_R)
    key = np.where(decode_R[chosen] > 0, table.group[slots_R[chosen]], _LAST_GROUP)
    chosen = chosen[np.argsort(key, kind="stable")]
    return chosen, cached_R[chosen], prefill_R[chosen], decode_R[chosen]
