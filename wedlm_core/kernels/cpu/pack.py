"""Packing the rows of a forward from layouts of windows, for any strategy: integers and copies only.

Results equal those of the readable packer in ``testing/engine/pack_oracle.py``. Where every window is ``verified``,
:func:`wedlm_core.kernels.cpu.step.pack_rows` packs from the windows themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel

Array = np.ndarray[Any, np.dtype[Any]]


class Layout(NamedTuple):
    """``engine.forward.groups.FlatLayout`` as arrays: ``next, own`` bool, the others int64."""

    token: Array
    offset: Array
    next: Array
    own: Array
    first: Array


@kernel
def pack_layouts(plan, layout, tokens, pages, page_size, rows, picks, place):  # type: ignore[no-untyped-def]
    """Write the rows of a forward, each sequence's prefill rows before its decode rows, and the picks among them.

    Args:
        plan: :class:`wedlm_core.kernels.cpu.step.Plan`; its decode rows are exact.
        layout: :class:`Layout` of the decoding sequences.
        tokens: int64 ``[slots, positions]``; prefill rows are read from it.
        pages: int64 ``[slots, P]`` page tables.
        page_size: KV entries per page.
        rows: :class:`wedlm_core.kernels.cpu.step.Rows`, written.
        picks: :class:`wedlm_core.kernels.cpu.step.Picks` with room for every decode row, written.
        place: int64, as long as the picks, written: each pick's place in the flat layout.

    Returns:
        The number of picks.
    """
    # Fields that a loop uses are taken out of their tuples before it: inside, each use would count references.
    slots, cached, prefill, decode = plan
    layout_token, offset, takes_next, takes_own, first = layout
    row_token, position, kv_entry = rows
    pick_row, pick_slot, pick_position = picks
    row, number = 0, 0
    for s in range(len(slots)):
        slot, context = slots[s], cached[s] + prefill[s]
        for r in range(prefill[s] + decode[s]):
            at = cached[s] + r
            kv_entry[row + r] = pages[slot, at // page_size] * page_size + at % page_size
        for r in range(prefill[s]):
            row_token[row + r] = tokens[slot, cached[s] + r]
            position[row + r] = cached[s] + r
        row += prefill[s]
        for r in range(decode[s]):
            at = first[s] + r
            row_token[row + r] = layout_token[at]
            position[row + r] = context + offset[at]
            if takes_next[at] or takes_own[at]:
                pick_row[number] = row + r
                pick_slot[number] = slot
                # The next-token head chooses the token after the row's, a mask its own.
                pick_position[number] = context + offset[at] + (1 if takes_next[at] else 0)
                place[number] = at
                number += 1
        row += decode[s]
    return number
