"""Hundreds of simulated actors on the real dispatcher, scaler, index and ledger: rows once, whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testing.pipeline.cluster_simulation import Scenario, simulate

_SMALL = Scenario(actors=32, rows=128_000, unit_rows=64, lost_an_hour=0.0)


@pytest.mark.parametrize("lost_an_hour", [0.0, 20.0])
def test_every_unit_is_committed_once_and_gpus_stay_busy(tmp_path: Path, lost_an_hour: float) -> None:
    found = simulate(replace(_SMALL, lost_an_hour=lost_an_hour), tmp_path)
    assert found.commits == {1: found.units}
    assert found.units == 2000
    assert bool(found.lost_nodes) == bool(lost_an_hour)
    assert found.executions > found.units or not lost_an_hour
    assert found.efficiency > (0.5 if lost_an_hour else 0.8), "a short job: its start and its end count"


def test_an_actor_more_costs_the_driver_no_more_for_a_unit(tmp_path: Path) -> None:
    """Ten times the actors and rows: the processor time of a decision stays, within the noise of a busy machine."""
    few = simulate(replace(_SMALL, actors=40, rows=60_000), tmp_path / "few")
    many = simulate(replace(_SMALL, actors=400, rows=600_000), tmp_path / "many")
    each = [found.driver_seconds["dispatcher"] / found.units for found in (few, many)]
    assert each[1] < 4 * each[0]
