"""Each part of drafting can be left out, and a job may be simulated up to any length."""

from __future__ import annotations

import pytest

from benchmarks.decode.ablation import CASES, PARTS, rate
from testing.engine.drafting_simulation import FixedWindow, Scenario, tokens_after


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_left_out_without_an_error(part: str) -> None:
    assert rate(next(iter(CASES)), PARTS[part], forwards=4, seed=0) > 0


def test_tokens_of_a_job_grow_with_its_length() -> None:
    scenario = Scenario(batch=8, context=64, acceptance=(0.5,))
    short, long = tokens_after(scenario, FixedWindow(0), [0.1, 0.4])
    assert 0 < short < long == pytest.approx(4 * short, rel=0.1)
