"""The windows that sequences with a grammar draft (:mod:`.grammar_columns`) are noted and written.

Each pass takes the place of many operations on arrays, whose results it equals
(``testing/engine/grammar_rows_oracle.py``).
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.grammar_columns import CHANGED, DONE, GOES_ON, LEAD, MASKS, OUTCOME, PLACE, SLOT
from wedlm_core.statistics import DraftSource

__all__ = ["note_windows", "write_windows"]

_MASK = int(DraftSource.MASK)


@kernel
def note_windows(numbers, results, drafts, sources, next_rows, mask, slot_sources, slot_rows):  # type: ignore[no-untyped-def]
    """Complete the next windows of G sequences, and note them in the slot table.

    A window stays as the forward left it, masks or a head alone, where its sequence is over or failed, and where there
    was a head alone and nothing is drafted.

    Args:
        numbers: of :class:`wedlm_core.kernels.cpu.grammar_columns.Proposed`.
        results: of :class:`wedlm_core.kernels.cpu.grammar_columns.Drafted`, as the next two; marked where windows
            change.
        drafts: tokens; masks after them are written.
        sources: of drafts.
        next_rows: int64 ``[D]``, rows of the windows that the forward left.
        mask: the mask token.
        slot_sources: int8 ``[slots, L]``, written: of the drafts of a window, and after them.
        slot_rows: int64 ``[slots]``, written where windows change: their rows.

    Returns:
        How many windows change.
    """
    changed, places = 0, drafts.shape[1]
    for g in range(numbers.shape[1]):
        slot, lead, masks = numbers[SLOT, g], results[LEAD, g], results[MASKS, g]
        slot_sources[slot, :] = _MASK
        results[CHANGED, g] = 0
        if numbers[GOES_ON, g] == 0 or results[OUTCOME, g] != DONE:
            continue
        if next_rows[numbers[PLACE, g]] <= 1 and lead + masks == 0:
            continue
        changed += 1
        results[CHANGED, g], slot_rows[slot] = 1, 1 + lead + masks
        for place in range(lead):
            slot_sources[slot, place] = sources[g, place]
        for place in range(lead, places):
            drafts[g, place] = mask
    return changed


@kernel
def write_windows(numbers, results, drafts, tokens, filled, leads, lengths):  # type: ignore[no-untyped-def]
    """Write the windows that :func:`note_windows` changed to those of all slots.

    Args:
        numbers: of :class:`wedlm_core.kernels.cpu.grammar_columns.Proposed`.
        results: of :class:`wedlm_core.kernels.cpu.grammar_columns.Drafted`, as the next one.
        drafts: tokens, and masks after them.
        tokens: int64 ``[slots, L]``, written as the next ones.
        filled: bool ``[slots, L]``, whether a place has a token.
        leads: int64 ``[slots]``, drafts.
        lengths: int64 ``[slots]``, drafts and masks.
    """
    for g in range(numbers.shape[1]):
        if results[CHANGED, g] == 0:
            continue
        slot, lead = numbers[SLOT, g], results[LEAD, g]
        leads[slot], lengths[slot] = lead, lead + results[MASKS, g]
        for place in range(drafts.shape[1]):
            tokens[slot, place], filled[slot, place] = drafts[g, place], place < lead
