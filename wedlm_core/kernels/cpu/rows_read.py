"""Which rows of a forward are read after the last layer: of all others the layer only writes keys and values.

A row is read where a token is chosen on it. Rows of a prompt but for the last are not, nor are rows with a single
allowed token, unless adjustments may forbid it.
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.adjusting import uses_any
from wedlm_core.kernels.cpu.compiled import kernel


@kernel(inline="always")
def _is_certain(lines, slots, adjustments, p):  # type: ignore[no-untyped-def]
    return lines[p] <= -2 and not uses_any(adjustments, slots[p])


@kernel
def pick_rows_read(pick_rows, lines, slots, adjustments, rows, picks):  # type: ignore[no-untyped-def]
    """Write the rows of picks that need logits.

    Args:
        pick_rows: int64 ``[P]``, ascending.
        lines: int64 ``[P]``, the allowed tokens of a pick (``AllowedRows.line_R``), or empty without restrictions.
        slots: int64 ``[P]``, engine slots of the picks.
        adjustments: address of a record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS`, or 0.
        rows: int64 ``[1 + P]``, written: how many there are, and each.
        picks: int64 ``[P]``, written: their places among the picks.
    """
    count = 0
    for p in range(len(pick_rows)):
        if len(lines) == 0 or not _is_certain(lines, slots, adjustments, p):
            rows[1 + count], picks[count] = pick_rows[p], p
            count += 1
    rows[0] = count


@kernel
def find_spans(rows, starts, counts, cached, spans):  # type: ignore[no-untyped-def]
    """Write the rows of each sequence from the first that is read to the last.

    Args:
        rows: int64 ``[N]``, rows that are read, ascending.
        starts: int64 ``[S]``; this and the next two as in :class:`wedlm_core.attention.PackedRows`.
        counts: int64 ``[S]``.
        cached: int64 ``[S]``.
        spans: int64 ``[3, S]``, written: the same three of the rows in question; none where no row is read.
    """
    at = 0
    for s in range(len(starts)):
        first, end = at, starts[s] + counts[s]
        while at < len(rows) and rows[at] < end:
            at += 1
        skipped = rows[first] - starts[s] if at > first else 0
        spans[0, s], spans[2, s] = starts[s] + skipped, cached[s] + skipped
        spans[1, s] = rows[at - 1] + 1 - rows[first] if at > first else 0


@kernel
def take_only_tokens(lines, slots, adjustments, tokens, entropies, logprobs, first, last):  # type: ignore[no-untyped-def]
    """The choices of picks that may choose one token alone: it is certain, whatever the model would say.

    Args:
        lines: int64 ``[P]`` (``AllowedRows.line_R``).
        slots: as for :func:`pick_rows_read`.
        adjustments: likewise.
        tokens: int64 ``[P]``, written.
        entropies: float32 ``[P]``, written.
        logprobs: float32 ``[P]``, written.
        first: pick to begin with.
        last: pick to end before.
    """
    for p in range(first, last):
        if _is_certain(lines, slots, adjustments, p):
            tokens[p], entropies[p], logprobs[p] = -2 - lines[p], 0.0, 0.0


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
