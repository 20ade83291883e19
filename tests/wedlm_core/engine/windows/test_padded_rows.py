"""New sequences stay within the rows that a plan paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.padded_rows import PaddedRows
from wedlm_core.engine.windows.step_time import Load

JUMPS = StepCost(rows=(8, 64, 72, 128, 136, 256), seconds=(3.3e-3, 3.4e-3, 4.1e-3, 4.1e-3, 5.7e-3, 5.8e-3), quantum=8)
LOAD = Load(cost=JUMPS, are_bounds=True)


@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=12), st.data(), st.integers(0, 9),
    st.sampled_from([1 << 30, 80]), st.integers(0, 20),
)  # fmt: skip
def test_forwards_stay_below_the_jump_behind_the_plan_whoever_is_replaced(
    planned: list[int], data: st.DataObject, new_masks: int, most_rows: int, other_rows: int
) -> None:
    load = Load(cost=JUMPS, are_bounds=True, most_rows=most_rows, other_rows=float(other_rows))
    masks_S, slots_S = np.array(planned), np.arange(len(planned))
    room, running = PaddedRows(16), dict(enumerate(planned))
    room.plan(slots_S, masks_S, np.full(len(planned), 32), new_masks, load)
    before = other_rows + int((1 + 2 * masks_S).sum())
    for slot in data.draw(st.lists(st.sampled_from(range(len(planned))), max_size=20)):
        running[slot] = room.admit(slot, new_masks)
        assert 0 <= running[slot] <= new_masks
        rows = other_rows + sum(1 + 2 * masks for masks in running.values())
        end = min(edge for edge in (64, 128, 256, 512) if edge >= before)
        # A sequence has a row whatever was paid for.
        assert rows <= max(end, before) or running[slot] == 0
        assert rows <= max(most_rows, before) or running[slot] == 0


def test_what_a_wide_sequence_left_is_taken_by_those_that_follow() -> None:
    room = PaddedRows(4)
    room.plan(np.arange(4), np.array([12, 6, 6, 6]), np.full(4, 32), 9, LOAD)  # 64 rows: the last before a jump
    assert room.admit(1, 9) == 6, "no more than the one before had"
    assert room.admit(0, 9) == 9
    assert room.admit(2, 9) == 9, "of the 12 three were left over"
    assert room.admit(3, 9) == 6


@pytest.mark.parametrize(("ending", "allowed"), [(1, 2), (4, 9)])
def test_where_many_are_about_to_end_each_counts_as_the_one_that_follows(ending: int, allowed: int) -> None:
    """Outputs of a few forwards: a plan that sees most of them at their end has few rows, and others come at once."""
    masks_S, widest_S = np.full(8, 3), np.full(8, 32)  # 56 rows
    masks_S[:ending], widest_S[:ending] = 1, 1
    room = PaddedRows(8)
    room.plan(np.arange(8), masks_S, widest_S, 9, LOAD)
    got = [room.admit(slot, 9) for slot in range(ending)]
    assert min(got) >= allowed if ending == 4 else got == [7], "up to 64 rows; where many end, up to 128"
