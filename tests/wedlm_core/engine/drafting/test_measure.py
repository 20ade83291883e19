"""Step costs are measured by forwards that the engine itself could run, whatever its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.engine.engines import loaded, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting import measure
from wedlm_core.engine.drafting.bench import Bench
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.types import SamplingParams


@given(
    sequences=st.integers(1, 200),
    window=st.integers(1, 40),
    spare_rows=st.integers(0, 3000),
    quantum=st.sampled_from([4, 8, 16, 64]),
    deepest=st.integers(1, 600),
)
def test_every_measured_forward_is_within_the_engines_limits(
    sequences: int, window: int, spare_rows: int, quantum: int, deepest: int
) -> None:
    widest = 2 * window + 1
    config = EngineConfig(max_num_seqs=sequences, max_window=window, max_batch_rows=widest + spare_rows)
    points = measure._points(quantum, config, deepest)
    assert points, "there is something to measure"
    assert len(points) == len(set(points))
    for rows, own, context in points:
        assert 1 <= own <= sequences
        assert own <= rows <= config.max_batch_rows
        assert -(-rows // own) <= widest
        assert 1 <= context <= deepest


def test_kernels_that_the_first_forward_compiles_take_no_time_from_the_others() -> None:
    class Bench:
        forwards, now = 1, 0.0

        def run(self, rows: int, sequences: int, context: int, *, before: int = 0) -> float:
            took = 1e-5 * rows if self.now else 30.0
            self.now += took
            return took

        def clock(self) -> float:
            return self.now

    points = [(4 << i, 1, 64) for i in range(10)]
    samples, spread = measure._timed(cast(Any, Bench()), points)
    assert [sample.rows for sample in samples] == [rows for rows, _, _ in points]
    assert all(sample.seconds == pytest.approx(1e-5 * sample.rows) for sample in samples)
    assert spread == pytest.approx(1.0)


@pytest.mark.parametrize("slower", [1.1, 3.0])
def test_a_table_that_was_measured_on_a_busy_machine_is_not_kept(
    qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch, slower: float
) -> None:
    kept, turns = dict[str, StepCost](), dict[tuple[int, int, int], int]()

    def every_second_is_slower(self: Bench, rows: int, sequences: int, context: int, *, before: int = 0) -> float:
        point = rows, sequences, context
        turns[point] = turns.get(point, 0) + 1
        return 1e-3 * (slower if turns[point] % 2 else 1.0)

    monkeypatch.setattr(Bench, "run", every_second_is_slower)
    monkeypatch.setattr(measure, "CONSTANTS", CONSTANTS)  # time enough for several rounds
    monkeypatch.setattr(measure, "_ROUNDS", 5)
    monkeypatch.setattr(measure, "load_cached", kept.get)
    monkeypatch.setattr(measure, "save_cached", kept.__setitem__)
    engine = Engine(*loaded(qwen3_folder), EngineConfig(max_num_seqs=2))
    engine.measure_step_cost()
    assert min(turns.values()) > 1, turns
    assert bool(kept) == (slower < measure._MOST_SPREAD)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 1, "max_window": 1, "max_batch_rows": 3},
        {"max_num_seqs": 3, "max_window": 2, "max_batch_rows": 5, "max_model_len": 24, "page_size": 1},
        {"max_num_seqs": 2, "num_pages": 1},
    ],
    ids=str,
)
def test_the_first_default_request_runs_in_an_engine_of_any_size(
    qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], overlap: bool
) -> None:
    monkeypatch.setattr(measure, "load_cached", lambda key: None)
    monkeypatch.setattr(measure, "CONSTANTS", replace(CONSTANTS, measured_seconds=(0.1, 0.1)))
    seen: list[int] = []
    plain = Bench.run

    def watched(self: Bench, rows: int, sequences: int, context: int, *, before: int = 0) -> float:
        seen.append(sequences)
        return plain(self, rows, sequences, context, before=before)

    monkeypatch.setattr(Bench, "run", watched)
    engine = Engine(*loaded(qwen3_folder), EngineConfig(overlap=overlap, **settings))
    found = run(engine, requests_of([[3, 4], [5]], SamplingParams(max_tokens=6, ignore_eos=True)))
    assert [len(g.token_ids) for g in found] == [6, 6]
    assert max(seen, default=0) <= settings["max_num_seqs"]  # a pool of one page has no room to measure in


def test_where_rows_are_padded_the_first_beyond_each_large_count_is_measured_once() -> None:
    config = EngineConfig(max_num_seqs=256, max_batch_rows=2048)
    padded, plain = (measure._points(quantum, config, 512) for quantum in (8, 1))
    beyond = [rows for rows, _, _ in padded if rows & (rows - 1)]
    assert beyond == [72, 136, 264, 520, 1032], "where a product has another tile of rows"
    assert not [rows for rows, _, _ in plain if rows & (rows - 1)]
