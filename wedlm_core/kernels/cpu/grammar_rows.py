"""Small passes over the sequences of a forward that have a grammar, each in place of many operations on arrays.

Results equal those of the expressions in ``testing/engine/grammar_rows_oracle.py``.
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import DraftSource

__all__ = ["collect_commits", "count_forced", "row_lines"]

_GRAMMAR = int(DraftSource.GRAMMAR)


@kernel
def collect_commits(  # type: ignore[no-untyped-def]
    slots, rows, emitted, ended, committed, valid, constrained, keep_valid, keep_stale, widest, limit, generated, masks,
    numbers,
):  # fmt: skip
    """The columns of :class:`wedlm_core.kernels.cpu.grammar_columns.Proposed` that tables and the outcome say.

    Args:
        slots: int64 ``[D]``, as the next two and ``committed``.
        rows: of the forward.
        emitted: tokens that are output.
        ended: bool ``[D]``.
        committed: tokens.
        valid: bool ``[D]``, whether the prefix of masks' proposals is valid.
        constrained: bool by slot.
        keep_valid: int64 by slot, as the next ones: columns of the slot table.
        keep_stale: proposals of masks that are kept.
        widest: masks at most.
        limit: output tokens at most.
        generated: output tokens.
        masks: that are planned.
        numbers: int64 ``[10, G]``, written; G is how many sequences have a grammar.
    """
    g = 0
    for d in range(len(slots)):
        slot = slots[d]
        if not constrained[slot]:
            continue
        kept = keep_valid[slot] if valid[d] else keep_stale[slot]
        numbers[0, g], numbers[1, g], numbers[2, g], numbers[3, g] = slot, emitted[d], committed[d], rows[d]
        numbers[4, g] = max(0, min(kept, rows[d] - 1 - committed[d]))
        numbers[5, g] = min(2 * widest[slot], limit[slot] - generated[slot])
        numbers[6, g], numbers[7, g], numbers[8, g], numbers[9, g] = masks[slot], 0, 0 if ended[d] else 1, d
        g += 1


@kernel
def count_forced(slots, source, agreed, emitted, constrained, adaptive):  # type: ignore[no-untyped-def]
    """Tokens emitted by adaptive sequences with a grammar: forced ones, and all.

    Args:
        slots: int64 ``[D]``.
        source: int8 ``[D, L]``, of the drafts.
        agreed: int64 ``[D]``, drafts that were accepted.
        emitted: int64 ``[D]``.
        constrained: bool by slot.
        adaptive: bool by slot.
    """
    forced, tokens = 0, 0
    for d in range(len(slots)):
        if constrained[slots[d]] and adaptive[slots[d]]:
            tokens += emitted[d]
            for j in range(min(agreed[d], emitted[d], source.shape[1])):
                forced += source[d, j] == _GRAMMAR
    return forced, tokens


@kernel
def row_lines(slots, positions, firsts, counts, begins, lines, free, out):  # type: ignore[no-untyped-def]
    """The line of each row: :meth:`wedlm_core.decoding.allowed_tokens.AllowedTokens.rows`.

    Args:
        slots: int64 ``[R]``.
        positions: int64 ``[R]``.
        firsts: int64 by slot, as the next two.
        counts: states.
        begins: position of the first.
        lines: int64 ``[N]``.
        free: line of a row that may choose any token.
        out: int64 ``[R]``, written.
    """
    for r in range(len(slots)):
        first, state = firsts[slots[r]], positions[r] - begins[slots[r]]
        known = first >= 0 and 0 <= state < counts[slots[r]]
        out[r] = lines[first + state] if known else free
