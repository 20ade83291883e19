"""Planners of a few sequences, and forwards that they observe."""

from __future__ import annotations

import numpy as np
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import PlannerTuning

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome

__all__ = ["CHEAP", "COUNT", "WIDE", "observe_heads", "planned", "table_of"]

COUNT, WIDE = 8, 32
CHEAP = StepCost.linear(fixed=1e-3, per_row=1e-5, floor_rows=8)


def planned(unread_row: float = 1.0, running: int = COUNT) -> tuple[WindowPlanner, SlotTable]:
    """A planner of drafts that are never right, after a plan that gives no masks."""
    table, slots = SlotTable(COUNT, WIDE), np.arange(running)
    table.adaptive[:], table.widest[:], table.limit[:], table.rows[:] = True, WIDE, 10**6, 1
    dear = StepCost.linear(fixed=1e-3, per_row=1e-3)
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0), unread_row=unread_row)
    planner.admit(slots, running)
    assert planner.plan(slots, dear, 1 << 20)
    return planner, table


def table_of(count: int) -> SlotTable:
    """Sequences whose windows are planned, of no known end."""
    table = SlotTable(count, WIDE)
    table.adaptive[:], table.widest[:], table.limit[:], table.rows[:] = True, WIDE, 10**6, 1
    return table


def observe_heads(
    planner: WindowPlanner, table: SlotTable, *, prefill_rows: int = 0, drafts: int = 0, ends: bool = False
) -> None:
    """A forward of heads, each with so many drafts that are wrong; with ``ends`` the last of its output."""
    one, none, empty = np.ones(COUNT, np.int64), np.zeros(COUNT, np.int64), np.zeros((COUNT, 0))
    yes = one.astype(np.bool_)
    outcome = StepOutcome(
        count_D=one, next_rows_D=one, context_D=one, drafts_D=none + drafts, agreed_D=none, offered_D=none + drafts,
        valid_D=yes, next_valid_D=yes, token_DC=empty.astype(np.int64), early_DC=empty.astype(np.bool_),
        entropy_DC=empty.astype(np.float32), logprob_DC=empty.astype(np.float32),
    )  # fmt: skip
    source_DC = np.zeros((COUNT, 2 * WIDE), np.int8)
    planner.observe(
        np.arange(COUNT), one + drafts, outcome, one, yes & ends, prefill_rows, source_DC
    )  # fmt: skip
