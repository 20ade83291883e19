"""The longest rows begin first, so the end of a job is short: simulated engines, the real dispatcher and queues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.codec import EngineConfig, SamplingParams
from pipeline.config import RunConfig
from testing.pipeline.simulated_job import JobTimes, SimulatedJob, SimulatedRow, cut, skewed_rows, without_hints

SLOTS = 16


def run(rows: Sequence[SimulatedRow], actors: int, *, ordered: bool) -> JobTimes:
    config = RunConfig(input="-", output="-", actors=actors, unit_rows=8, engine=EngineConfig(max_num_seqs=SLOTS))
    own = rows if ordered else without_hints(rows)
    return SimulatedJob(config, cut(own, 8), [1.0] * actors, ordered=ordered).run()


@pytest.mark.parametrize("actors", [1, 4])
@pytest.mark.parametrize("learned", [False, True])
def test_the_last_rows_take_half_of_the_time_that_they_take_in_order_of_arrival(actors: int, learned: bool) -> None:
    last, full = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for seed in range(4):
        rows = skewed_rows(seed, 1000 * actors, median=50, most=2000, learned=learned)
        for ordered in (False, True):
            times = run(rows, actors, ordered=ordered)
            last[ordered] += times.last_rows
            full[ordered] += times.utilisation
    assert last[True] <= (0.75 if learned else 0.5) * last[False]
    assert full[True] > full[False]


def test_rows_of_one_length_go_in_order_of_arrival() -> None:
    """What is learned about them changes nothing."""
    rows = [SimulatedRow(tokens=20 + i % 3, params=SamplingParams(max_tokens=500)) for i in range(800)]
    config = RunConfig(input="-", output="-", unit_rows=8, engine=EngineConfig(max_num_seqs=SLOTS))
    job = SimulatedJob(config, cut(rows, 8), [1.0])
    job.run()
    assert job.given == [str(number) for number in range(100)]
