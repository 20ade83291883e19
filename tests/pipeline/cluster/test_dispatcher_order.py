"""The longest rows begin first, so the end of a job is short: simulated engines, the real dispatcher and queues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.cluster.dispatcher import Dispatcher
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.config import RunConfig
from pipeline.worker.lengths import Lengths, kind_of
from testing.pipeline.simulated_job import JobTimes, SimulatedJob, SimulatedRow, cut, skewed_rows, without_hints

SLOTS = 16


def run(rows: Sequence[SimulatedRow], actors: int, *, ordered: bool) -> JobTimes:
    config = RunConfig(input="-", output="-", actors=actors, unit_rows=8, engine=EngineConfig(max_num_seqs=SLOTS))
    own = rows if ordered else without_hints(rows)
    return SimulatedJob(config, cut(own, 8), [1.0] * actors, ordered=ordered).run()


@pytest.mark.parametrize("actors", [1, 3])
@pytest.mark.parametrize("learned", [False, True])
def test_the_last_rows_take_half_of_the_time_that_they_take_in_order_of_arrival(actors: int, learned: bool) -> None:
    last, full = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for seed in range(2):
        rows = skewed_rows(seed, 1000 * actors, median=50, most=2000, learned=learned)
        for ordered in (False, True):
            times = run(rows, actors, ordered=ordered)
            last[ordered] += times.last_rows
            full[ordered] += times.utilisation
    assert last[True] <= (0.75 if learned else 0.5) * last[False]
    assert full[True] > full[False]


def test_a_unit_with_a_longer_row_is_given_first_and_what_is_learned_of_waiting_units_counts() -> None:
    limits = [SamplingParams(max_tokens=tokens, ignore_eos=True) for tokens in (10, 500)]
    exact = [kind_of((1,), 1, params) for params in limits]
    unknown = [kind_of((opening,), 1, SamplingParams(max_tokens=2000)) for opening in (1, 2)]
    lengths = Lengths()
    for kind, tokens in zip(unknown, (5, 90), strict=True):
        for _ in range(50):
            lengths.learn(kind, tokens)
    for kinds, news in ((exact, {}), (unknown, lengths.take_news())):
        dispatcher = Dispatcher(held=9, max_overtakes=100)
        dispatcher.join(0, 0.0)
        for name, kind in zip(("short", "long"), kinds, strict=True):
            dispatcher.offer(name, {}, [kind])
        dispatcher.learn(news)
        assert [run.unit_id for run in iter(lambda own=dispatcher: own.next(0.0), None)] == ["long", "short"]


def test_rows_of_one_length_go_in_order_of_arrival() -> None:
    """What is learned about them changes nothing."""
    rows = [SimulatedRow(tokens=20 + i % 3, params=SamplingParams(max_tokens=500)) for i in range(800)]
    config = RunConfig(input="-", output="-", unit_rows=8, engine=EngineConfig(max_num_seqs=SLOTS))
    job = SimulatedJob(config, cut(rows, 8), [1.0])
    job.run()
    assert job.given == [str(number) for number in range(100)]
