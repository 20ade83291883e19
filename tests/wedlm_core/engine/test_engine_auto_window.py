"""``window_size="auto"``: windows follow the cost of rows, and the cost is measured once, safely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testing.engine.engines import loaded, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting import measure
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.model.sources import resolve
from wedlm_core.types import Generation, SamplingParams

FREE = StepCost.linear(fixed=1.0, per_row=0.01, floor_rows=4096)
DEAR = StepCost.linear(fixed=0.01, per_row=1.0)


@pytest.fixture(scope="module")
def parts() -> tuple:
    return loaded(resolve("tiny"))


def generate(parts: tuple, params: SamplingParams, config: EngineConfig) -> list[Generation]:
    engine = Engine(*parts, config)
    prompts = [engine.tokenizer.encode(f"Count from {i} to {i + 12}.") for i in range(1, 9)]
    return run(engine, requests_of(prompts, params))


def mean_window(found: list[Generation]) -> float:
    return sum(g.stats.window_mean for g in found) / len(found)


@pytest.mark.parametrize("strategy", ["verified", "streaming"])
def test_rows_that_cost_nothing_are_used_and_rows_that_cost_everything_are_not(parts: tuple, strategy: str) -> None:
    params = SamplingParams(max_tokens=64, strategy=strategy)
    wide = generate(parts, params, EngineConfig(step_cost=FREE))
    narrow = generate(parts, params, EngineConfig(step_cost=DEAR))
    assert mean_window(wide) > 12
    assert mean_window(narrow) < 4
    if strategy == "verified":
        assert [g.token_ids for g in wide] == [g.token_ids for g in narrow]


def test_fixed_windows_stay_fixed_beside_auto(parts: tuple) -> None:
    engine = Engine(*parts, EngineConfig(step_cost=DEAR))
    prompts = [engine.tokenizer.encode(f"Count from {i} to {i + 12}.") for i in range(1, 5)]
    params = [SamplingParams(max_tokens=64, window_size=w) for w in (8, "auto", 8, "auto")]
    found = run(engine, requests_of(prompts, params))
    assert min(found[i].stats.window_mean for i in (0, 2)) > 10
    assert max(found[i].stats.window_mean for i in (1, 3)) < 4


def test_a_window_shrinks_to_a_pool_that_holds_little_more_than_the_request(parts: tuple) -> None:
    found = generate(parts, SamplingParams(max_tokens=60), EngineConfig(step_cost=FREE, page_size=16, num_pages=6))
    assert all(len(g.token_ids) > 5 for g in found)


def test_the_cost_is_measured_once_per_model_and_machine(
    parts: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "CONSTANTS", replace(CONSTANTS, measured_seconds=(0.3, 0.3)))
    first = Engine(*parts).measure_step_cost()
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert first.seconds[0] > 0
    assert first.seconds[-1] > first.seconds[0]

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(measure, "_measured", never)
    assert Engine(*parts, EngineConfig(max_num_seqs=64)).measure_step_cost() == first
    with pytest.raises(AssertionError, match="measured again"):  # smaller engines run fewer sequences at once
        Engine(*parts, EngineConfig(max_num_seqs=3)).measure_step_cost()
