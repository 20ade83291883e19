"""Surveys the needs of running sequences for the next forward, and spends its rows, each in one pass."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel


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
def booked_rows(slots, adaptive, rows, widest, head):  # type: ignore[no-untyped-def]
    """Rows that running sequences keep from waiting ones: their windows' rows if adaptive, else their most rows.

    Args:
        slots: int64 ``[R]``, running ones.
        adaptive: bool ``[slots]``, drafting chooses their windows.
        rows: int64 ``[slots]``, decode rows of the next forward.
        widest: int64 ``[slots]``, masks of a window at most.
        head: bool ``[slots]``, a row more.
    """
    booked = 0
    for slot in slots:
        booked += rows[slot] if adaptive[slot] else 2 * widest[slot] + head[slot]
    return booked


@kernel
def _add(plan, at, slots, cached, r):  # type: ignore[no-untyped-def]
    """Write sequence r to a place of the plan; whether it is the same place."""
    slot = slots[r]
    plan[0, at], plan[1, at], plan[2, at], plan[3, at], plan[4, at] = slot, cached[slot], plan[5, r], plan[6, r], r
    return at == r


@kernel
def spend_rows(slots, context, cached, rows, held, group, budget, chunk, plan):  # type: ignore[no-untyped-def]
    """Spend the row budget: decoding sequences by age, then prefill chunks by age.

    Args:
        slots: int64 ``[R]``, running ones, by age.
        context: as for :func:`any_short`.
        cached: likewise.
        rows: likewise.
        held: bool ``[slots]``, sequences that wait.
        group: int64 ``[slots]``, number of the decoding implementation.
        budget: rows at most.
        chunk: prefill rows of a sequence at most; 0 where nothing but the budget limits them.
        plan: int64 ``[7, R]``, written. In the first places of lines 0 to 4 of the sequences that take part, those of
            a group together and those without decode rows last: slots, ``cached``, prefill rows, decode rows, and
            places among all of R. Lines 5 and 6 are scratch.

    Returns:
        How many take part, and whether they are the first ones as they run.
    """
    prefills, decodes = plan[5], plan[6]
    total, left = 0, budget
    for r in range(len(slots)):
        slot = slots[r]
        prefills[r], decodes[r] = 0, 0
        if cached[slot] == context[slot] and not held[slot]:
            total += rows[slot]
            if total <= budget:
                decodes[r] = rows[slot]
                left -= rows[slot]
    for r in range(len(slots)):
        slot = slots[r]
        pending = context[slot] - cached[slot]
        if pending == 0:
            continue
        part = min(pending, left)
        if chunk > 0:
            part = min(part, chunk)
        if part <= 0:
            break
        prefills[r] = part
        left -= part
        if part == pending and rows[slot] <= left:
            decodes[r] = rows[slot]
            left -= rows[slot]
    count, in_order, last = 0, True, -1
    while True:  # each group, from the least number on
        own, found = 0, False
        for r in range(len(slots)):
            number = group[slots[r]]
            if decodes[r] > 0 and number > last and (not found or number < own):
                own, found = number, True
        if not found:
            break
        for r in range(len(slots)):
            if decodes[r] > 0 and group[slots[r]] == own:
                in_order = _add(plan, count, slots, cached, r) and in_order
                count += 1
        last = own
    for r in range(len(slots)):
        if prefills[r] > 0 and decodes[r] == 0:
            in_order = _add(plan, count, slots, cached, r) and in_order
            count += 1
    return count, in_order
