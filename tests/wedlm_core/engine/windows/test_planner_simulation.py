"""The planner in a discrete-event simulation of an H200: against no window and fixed ones."""

from __future__ import annotations

import pytest

from testing.engine.planner_simulation import H200, FixedWindow, Planned, Scenario, simulate

WINDOWS = (2, 8, 32)


@pytest.mark.parametrize("batch", [1, 32, 128])
@pytest.mark.parametrize("acceptance", [(0.5,), (0.95,), (0.5, 0.8, 0.95)], ids=["hard", "easy", "mixed"])
def test_planned_windows_reach_97_percent_of_none_and_93_percent_of_the_best_fixed_one(
    batch: int, acceptance: tuple[float, ...]
) -> None:
    scenario = Scenario(batch=batch, context=1024, acceptance=acceptance, stale=0.7)
    plain, planned, *fixed = (
        simulate(scenario, policy, forwards=2400 if batch == 1 else 400, warm_up=150).rate
        for policy in (FixedWindow(0), Planned(H200), *map(FixedWindow, WINDOWS))
    )
    assert planned >= 0.97 * plain
    assert planned >= 0.93 * max(plain, *fixed)


def test_a_fixed_window_is_slower_than_none_at_large_batch() -> None:
    """Else the two claims above were empty."""
    scenario = Scenario(batch=128, context=1024, acceptance=(0.5,))
    none, wide = (simulate(scenario, FixedWindow(w), forwards=100, warm_up=50).rate for w in (0, 16))
    assert wide < 0.5 * none
