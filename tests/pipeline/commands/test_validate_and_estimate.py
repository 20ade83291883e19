"""``estimate``: a deterministic sample from all over the input, honest totals; and the command's options."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.codec import SamplingParams
from pipeline.commands.estimate import Spread
from pipeline.commands.run_checks import sample_units
from pipeline.commit.index import Index
from pipeline.config import RunConfig
from pipeline.types import Slice, Unit
from testing.pipeline.fakes import FakeEngine


@given(sizes=st.lists(st.integers(1, 20), max_size=30), rows=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_a_sample_is_spread_over_the_input_and_never_larger_than_asked(sizes: list[int], rows: int) -> None:
    units = [Unit(unit_id=f"{i}", index=i, rows=Slice(file=0, first_row=0, num_rows=n)) for i, n in enumerate(sizes)]
    with Index() as index:
        index.units.fill(units)
        sample = sample_units(index.units, rows)
        assert sample == sample_units(index.units, rows)
    taken = [unit.rows.num_rows for unit in sample]
    assert sum(taken) <= rows
    assert all(1 <= take <= sizes[unit.index] for take, unit in zip(taken, sample, strict=True))
    places = [unit.index for unit in sample]
    assert len(set(places)) == len(places) == min(len(sizes), rows)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_the_spread_of_a_total_holds_the_truth_and_is_none_where_all_is_known() -> None:

    rng = random.Random(5)
    population = [rng.expovariate(1 / 50) for _ in range(3000)]
    inside = 0
    for _ in range(300):
        spread = Spread.of(rng.sample(population, 100), len(population))
        inside += spread.low <= sum(population) <= spread.high
    assert 0.90 <= inside / 300 <= 0.99
    whole = Spread.of(population, len(population))
    assert whole.low == pytest.approx(whole.high) == pytest.approx(sum(population))


def write(path: Path, rows: int) -> Path:
    ids = [[10 + i % 50] * (1 + i // 100) for i in range(rows)]
    pq.write_table(pa.table({"prompt_token_ids": ids, "k": list(range(rows))}), path)
    return path


def test_an_estimate_is_about_what_the_run_then_gives(qwen3_folder: Path, tmp_path: Path) -> None:
    config = RunConfig(
        input=str(write(tmp_path / "in.parquet", 1000)), output=str(tmp_path / "out"), model=str(qwen3_folder),
        sampling=SamplingParams(max_tokens=4, n=2), actors=3, unit_rows=10,
        gpus_per_actor=0.0, cpus_per_actor=0.5, price_per_hour=36.0,
    )  # fmt: skip
    engines: list[FakeEngine] = []

    def fake(job: Any, threads: int | None) -> FakeEngine:
        engines.append(FakeEngine(slots=1000))
        return engines[-1]

    found = pipeline.estimate(config, 100, fake)
    assert (found.rows, found.sampled_rows, found.failed_rows) == (1000, 100, 0)
    truth = sum(2 * (1 + i // 100) for i in range(1000))
    assert found.prompt_tokens.expected == pytest.approx(truth)
    assert found.prompt_tokens.low < truth < found.prompt_tokens.high
    assert 2000 <= found.completion_tokens.low < found.completion_tokens.high <= 8000
    assert sorted(found.seconds) == [1, 3, 6]
    start = found.plan_seconds + found.actor_start_seconds
    assert (
        found.seconds[1].expected > found.seconds[3].expected > found.seconds[6].expected > start > found.load_seconds
    )
    work = found.completion_tokens.expected / found.tokens_per_second
    assert found.seconds[3].expected == pytest.approx(start + work / 3)
    assert found.reserved[3].expected == pytest.approx(0.5 * (3 * found.actor_start_seconds + work))
    assert found.actor_start_seconds > 0.1, "a process was started"
    price = found.reserved[3].expected * 36 / 3600
    assert f"\nCost, 3 actors:   {price:.4g} (" in found.describe()
    assert " at 36 per CPU-hour; " in found.describe()
    assert found.describe().startswith("ESTIMATE from 100 of 1000 rows")
    assert not (tmp_path / "out").exists()
    again = pipeline.estimate(config, 100, fake)
    assert (again.prompt_tokens, again.completion_tokens) == (found.prompt_tokens, found.completion_tokens)


def test_an_empty_input_and_no_rows_are_errors(qwen3_folder: Path, tmp_path: Path) -> None:
    config = RunConfig(
        input=str(write(tmp_path / "in.parquet", 0)), output=str(tmp_path / "o"), model=str(qwen3_folder)
    )
    with pytest.raises(pipeline.SourceError, match=r"in.parquet': it has no rows"):
        pipeline.estimate(config)
    with pytest.raises(pipeline.ConfigError, match="at least 1"):
        pipeline.estimate(config, 0)


def test_validating_leaves_no_folder_behind(qwen3_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for output in ("mine", "mine/new/deep"):
        config = RunConfig(
            input=str(write(tmp_path / "in.parquet", 10)), output=str(tmp_path / output), model=str(qwen3_folder)
        )
        assert pipeline.validate(config).problems == ()
        assert list((tmp_path / "mine").iterdir()) == []


def test_validate_collects_every_problem_and_the_facts(qwen3_folder: Path, tmp_path: Path) -> None:
    prompts = [{11: "", 17: None}.get(i, f"Count from {i} to {i + 5}.") for i in range(30)]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "in.parquet")
    fields = {"input": str(tmp_path / "in.parquet"), "model": str(qwen3_folder)}
    found = pipeline.validate(RunConfig(output=str(tmp_path / "out"), **fields))
    assert found.ok, found.problems
    assert (found.rows, found.files, found.prompt_column) == (30, 1, "prompt")
    assert [warning.split(": ")[0] for warning in found.warnings] == ["row in.parquet:11", "row in.parquet:17"]
    assert (found.sampled_rows, found.failed_rows, found.model_length) == (30, 2, 512)
    (tmp_path / "file").write_text("in the way")
    bad = RunConfig(output=str(tmp_path / "file/out"), gpus_per_actor=1, prompt_column="question", **fields)
    problems = pipeline.validate(bad).problems
    assert [problem.split(":")[0] for problem in problems] == ["ConfigError", "ResourceError", "SourceError"]
