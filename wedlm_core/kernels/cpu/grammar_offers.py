"""What history proposes to sequences with a grammar, where that is likelier to be right than what masks propose.

Results equal those of the expressions in ``testing/engine/grammar_offers_oracle.py``.
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.grammar_columns import DONE, GOES_ON, KEPT, LEAD, OUTCOME, PAYING, PLACE, SLOT
from wedlm_core.statistics import DraftSource

__all__ = ["offer_history", "saved_commits"]

_HISTORY = int(DraftSource.HISTORY)


@kernel
def _promised(numbers, g, valid, by_masks):  # type: ignore[no-untyped-def]
    """Commits that are expected of masks' proposals to sequence g; arguments as of :func:`offer_history`."""
    masks, promised = by_masks[1 if valid[numbers[PLACE, g]] else 0, numbers[SLOT, g]], 0.0
    for j in range(min(numbers[KEPT, g], len(masks))):
        promised += masks[j]
    return promised


@kernel
def offer_history(numbers, acceptance, valid, by_masks, price, least):  # type: ignore[no-untyped-def]
    """Choose between what history and masks propose to G sequences of a forward.

    Args:
        numbers: of :class:`wedlm_core.kernels.cpu.grammar_columns.Proposed`; how many of history's drafts are worth a
            row is written, 0 where masks' are better.
        acceptance: float32 ``[D, P]``, probability that history's draft and all before it are accepted, 0 for none.
        valid: bool ``[D]``, whether the prefix of masks' proposals is valid.
        by_masks: float64 ``[2, slots, W]``, probability that masks' drafts up to each offset are accepted (stale ones,
            valid ones).
        price: commits that a row has to bring.
        least: acceptance below which no row is worth its bookkeeping.

    Returns:
        How many sequences get any.
    """
    least, sequences = max(price, least), 0
    for g in range(numbers.shape[1]):
        d, paying, gained = numbers[PLACE, g], 0, 0.0
        for p in range(acceptance.shape[1]):  # it falls along a sequence
            if acceptance[d, p] < least:
                break
            gained += acceptance[d, p]
            paying += 1
        numbers[PAYING, g] = paying if gained > _promised(numbers, g, valid, by_masks) else 0
        sequences += numbers[PAYING, g] > 0
    return sequences


@kernel
def saved_commits(numbers, results, sources, acceptance, valid, by_masks, price):  # type: ignore[no-untyped-def]
    """Commits that are expected of history's drafts in the next windows, over those of masks that they replace.

    Less what the rows of either cost. Where the grammar forces a token, or forbids what history proposes, history gave
    nothing.

    Args:
        numbers: of :class:`wedlm_core.kernels.cpu.grammar_columns.Proposed`.
        results: of :class:`wedlm_core.kernels.cpu.grammar_columns.Drafted`, as the next one.
        sources: of drafts.
        acceptance: as for :func:`offer_history`, and the rest.
        valid: likewise.
        by_masks: likewise.
        price: likewise.
    """
    saved = 0.0
    for g in range(numbers.shape[1]):
        if numbers[PAYING, g] == 0 or numbers[GOES_ON, g] == 0 or results[OUTCOME, g] != DONE:
            continue
        d = numbers[PLACE, g]
        for p in range(min(results[LEAD, g], acceptance.shape[1])):
            if sources[g, p] == _HISTORY:
                saved += acceptance[d, p] - price
        saved -= _promised(numbers, g, valid, by_masks) - price * numbers[KEPT, g]
    return saved
