"""Windows beside drafts from elsewhere, and beside sequences of other decodings."""

from __future__ import annotations

import numpy as np
import pytest

from testing.engine.planned import CHEAP, COUNT, WIDE, observe_heads, planned, table_of
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import PlannerTuning


def test_beside_drafts_from_elsewhere_masks_have_to_show_what_they_bring() -> None:
    """What is expected of them is of masks alone: where history makes sixteen tokens of a forward, they add nothing."""
    table = table_of(COUNT)
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(visit_share=0.0, probe_share=0.0, rival_within=9.0))
    slots = np.arange(COUNT)
    planner.wants_forward()
    observe_heads(planner, table)
    planner.plan(slots, CHEAP, 1 << 20)
    alone = table.masks.copy()
    assert alone.all(), "hopeful at first"
    for elsewhere, wanted in ((True, 0 * alone), (False, alone)):
        observe_heads(planner, table)
        planner.record_step(1e-3, elsewhere=elsewhere)
        assert planner.plan(slots, CHEAP, 1 << 20), "at once"
        np.testing.assert_array_equal(table.masks > 0, wanted > 0)
    planner._race._of(COUNT, True).value = 0.2  # a visit found that
    observe_heads(planner, table)
    planner.record_step(1e-3, elsewhere=True)
    planner.plan(slots, CHEAP, 1 << 20)
    assert table.masks.all()


@pytest.mark.parametrize("per_row", np.geomspace(1e-5, 1e-2, 25).tolist())
@pytest.mark.parametrize("bias", [0.0, -0.1])
def test_masks_that_lose_alone_are_not_tried_beside_drafts_from_elsewhere(per_row: float, bias: float) -> None:
    """They were expected to make no difference there, and so taken where they cost a third of the speed."""
    table, slots = table_of(COUNT), np.arange(COUNT)
    planner = WindowPlanner(table, WIDE, 1 << 20, PlannerTuning(probe_share=0.0, rival_within=9.0))
    planner.wants_forward()
    planner._race._of(COUNT, False).value = bias
    cost, masks = StepCost.linear(fixed=1e-3, per_row=per_row), []
    for elsewhere in (False, True):
        observe_heads(planner, table)
        planner.record_step(1e-3, elsewhere=elsewhere)
        planner.plan(slots, cost, 1 << 20)
        masks.append(int(table.masks.sum()))
    alone, beside = masks
    assert beside <= alone


@pytest.mark.parametrize(
    ("alone", "bias", "shift"), [(0.3, 0.0, 0.3), (0.3, -0.4, 0.4), (-0.3, 0.0, 0.0), (-0.3, 0.4, -0.3)]
)
def test_beside_drafts_from_elsewhere_masks_bring_nothing_or_what_they_lose_alone(
    alone: float, bias: float, shift: float
) -> None:
    planner, _ = planned()
    planner._race._of(COUNT, False).value = bias
    assert planner._shift(alone, COUNT) == pytest.approx(shift)
    assert planner._shift(None, COUNT) == 0.0


def test_who_drafts_is_known_beside_other_decodings_too() -> None:
    """Their forwards tell nothing of masks, but history may stop to be asked meanwhile: masks stayed closed."""
    planner, table = planned()
    planner.wants_forward()
    for adaptive, elsewhere in ((COUNT, True), (1, False), (1, True), (COUNT, False)):
        table.adaptive[:] = np.arange(COUNT) < adaptive
        observe_heads(planner, table)
        planner.record_step(1e-3, elsewhere=elsewhere)
        assert planner._race.elsewhere is elsewhere
        assert planner.is_due(COUNT)


def test_outputs_of_other_decodings_tell_nothing_of_lengths() -> None:
    """Rows of one token, decoded autoregressively, closed the windows of all that ran beside and after them."""
    planner, table = planned()
    table.adaptive[:], table.generated[:] = False, 1
    for _ in range(20):
        observe_heads(planner, table, ends=True)
    table.adaptive[:] = True
    assert planner._ended.lengths(77.0).tokens == 77.0
    assert planner._ends == 0
    assert planner._outputs == pytest.approx(planner._tuning.prior_commits), (
        "their tokens count no more than their ends"
    )
    for _ in range(20):
        observe_heads(planner, table, ends=True)
    assert planner._ended.lengths(77.0).tokens == 1.0


def test_forwards_of_other_decodings_do_not_correct_the_cost_of_forwards() -> None:
    """They may do other work for as many rows: the published rule on a GPU takes twice as long."""
    planner, table = planned()
    for adaptive, counts in ((COUNT, True), (1, True), (0, False)):
        table.adaptive[:] = np.arange(COUNT) < adaptive
        asked = 0
        for _ in range(64):
            observe_heads(planner, table)
            asked += planner.wants_forward()
        assert (asked > 0) == counts


def test_forwards_with_fixed_windows_among_them_tell_nothing_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens come whether others have masks or not: what masks brought all of them is not what they bring."""
    planner, table = planned()
    seen: list[float] = []
    monkeypatch.setattr(planner._race, "record", lambda seconds, *_, **__: seen.append(seconds))
    planner.wants_forward()
    for adaptive in (COUNT, COUNT - 1, 0):
        table.adaptive[:] = np.arange(COUNT) < adaptive
        observe_heads(planner, table)
        planner.record_step(float(adaptive))
    assert seen == [float(COUNT)]
