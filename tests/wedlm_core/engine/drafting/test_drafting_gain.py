"""The gain that drafting counts is the one that decoding has over autoregressive decoding."""

from __future__ import annotations

import numpy as np
import pytest

from testing.engine.drafting_simulation import H200, FixedWindow, Planned, Scenario, simulate
from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.llm import LLM
from wedlm_core.statistics import gain_of
from wedlm_core.types import SamplingParams, StructuredOutputs


@pytest.mark.parametrize(
    ("batch", "acceptance", "prompt"), [(1, 0.9, 0), (8, 0.8, 0), (8, 0.8, 96), (64, 0.8, 0), (128, 0.2, 0)]
)
def test_the_counted_gain_is_the_simulated_one(batch: int, acceptance: float, prompt: int) -> None:
    scenario = Scenario(batch=batch, context=512, acceptance=(acceptance,), stale=0.8, prompt=prompt)
    plain, planned = FixedWindow(0), Planned(H200)
    rates = [simulate(scenario, policy, forwards=1500, warm_up=0).rate for policy in (plain, planned)]
    drafting = planned.drafting
    found = gain_of(drafting.autoregressive_seconds, drafting.decode_seconds)
    assert found == pytest.approx(rates[1] / rates[0], rel=0.04)


def tiny_engine() -> Engine:
    cost = StepCost(rows=(1, 64), seconds=(1e-3, 2e-3))
    return LLM("tiny", config=EngineConfig(max_num_seqs=4, step_cost=cost)).engine


@pytest.mark.parametrize(
    "fields",
    [{"strategy": "autoregressive"}, {"window_size": 4}, {"structured_outputs": StructuredOutputs(regex="[0-9]{20}")}],
    ids=["autoregressive", "fixed window", "grammar"],
)
def test_steps_that_drafting_does_not_plan_are_not_counted(fields: dict[str, object]) -> None:
    engine = tiny_engine()
    run(engine, requests_of([[10, 11]], SamplingParams(max_tokens=20, **fields)))
    assert engine.snapshot().counters.decode_seconds == 0
    run(engine, requests_of([[10, 11]], SamplingParams(max_tokens=40, ignore_eos=True)))
    counters = engine.snapshot().counters
    assert counters.decode_seconds > 0
    assert np.isfinite(counters.autoregressive_seconds)
