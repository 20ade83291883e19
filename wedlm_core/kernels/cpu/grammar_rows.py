"""The allowed tokens of rows whose sequences have a grammar, in one pass in place of several operations on arrays."""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel


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
