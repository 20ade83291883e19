""":mod:`wedlm_core.kernels.cpu.grammar_rows` and :mod:`.grammar_windows` as operations on arrays."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.kernels.cpu.grammar_columns import DONE, Drafted, Proposed
from wedlm_core.statistics import DraftSource

__all__ = ["collected", "forced_count", "lines_of_rows", "noted_windows"]


def collected(
    table: SlotTable, slots_D: IntArray, rows_D: IntArray, emit_D: IntArray, ended_D: BoolArray, outcome: StepOutcome
) -> IntArray:
    """``[10, G]``, see :func:`wedlm_core.kernels.cpu.grammar_rows.collect_commits`."""
    own_G = np.flatnonzero(table.constrained[slots_D])
    slots_G = slots_D[own_G]
    kept_G = np.where(outcome.next_valid_D[own_G], table.keep_valid[slots_G], table.keep_stale[slots_G])
    behind_G = rows_D[own_G] - 1 - outcome.count_D[own_G]
    room_G = np.minimum(2 * table.widest[slots_G], table.left(slots_G))
    columns = (
        slots_G, emit_D[own_G], outcome.count_D[own_G], rows_D[own_G], np.maximum(np.minimum(kept_G, behind_G), 0),
        room_G, table.masks[slots_G], 0 * slots_G, ~ended_D[own_G], own_G,
    )  # fmt: skip
    return np.array(columns, dtype=np.int64)


def forced_count(
    table: SlotTable, slots_D: IntArray, agreed_D: IntArray, emit_D: IntArray, source_DC: np.ndarray
) -> tuple[int, int]:
    """Tokens that were forced, and all of these sequences."""
    own_D = table.constrained[slots_D] & table.adaptive[slots_D]
    right_DC = np.arange(source_DC.shape[1]) < np.minimum(agreed_D, emit_D)[:, None]
    return int(((source_DC == DraftSource.GRAMMAR) & right_DC)[own_D].sum()), int(emit_D[own_D].sum())


def lines_of_rows(slot_R: IntArray, position_R: IntArray, facts_3S: IntArray, line_N: IntArray, free: int) -> IntArray:
    """The line of each row."""
    first_S, count_S, begin_S = facts_3S
    state_R = position_R - begin_S[slot_R]
    known_R = (first_S[slot_R] >= 0) & (state_R >= 0) & (state_R < count_S[slot_R])
    return np.where(known_R, line_N[np.where(known_R, first_S[slot_R] + state_R, 0)], free)


def noted_windows(
    table: SlotTable, proposed: Proposed, drafted: Drafted, next_rows_D: IntArray, mask: int
) -> BoolArray:
    """Which windows change; they are completed, and the table is written."""
    goes_on_G = proposed.goes_on & (drafted.outcome == DONE)
    changed_G = goes_on_G & ((next_rows_D[proposed.places] > 1) | (drafted.lead + drafted.masks > 0))
    behind_GL = np.arange(drafted.token_GL.shape[1]) >= drafted.lead[:, None]
    drafted.token_GL[changed_G[:, None] & behind_GL] = mask
    source_GL = np.where(behind_GL, DraftSource.MASK, drafted.source_GL)
    table.source[proposed.slots] = np.where(changed_G[:, None], source_GL, DraftSource.MASK)
    table.rows[proposed.slots[changed_G]] = (1 + drafted.lead + drafted.masks)[changed_G]
    return changed_G
