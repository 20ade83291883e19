"""The gain that drafting counts is that of decoding over autoregressive decoding."""

from __future__ import annotations

import numpy as np
import pytest

from testing.engine.drafting_simulation import H200, FixedWindow, Planned, Scenario, outcome_of, simulate
from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.llm import LLM
from wedlm_core.statistics import gain_of
from wedlm_core.types import SamplingParams, StructuredOutputs


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("batch", "acceptance", "prompt"), [(1, 0.9, 0), (8, 0.8, 0), (8, 0.8, 96), (64, 0.8, 0), (128, 0.2, 0)]
)
def test_the_counted_gain_is_the_simulated_one(batch: int, acceptance: float, prompt: int) -> None:
    scenario = Scenario(batch=batch, context=512, acceptance=(acceptance,), stale=0.8, prompt=prompt)
    plain, planned = FixedWindow(0), Planned(H200)
    rates = [simulate(scenario, policy, forwards=1500, warm_up=0) for policy in (plain, planned)]
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


def drained(widest: int) -> tuple[float, float]:
    """The gain that drafting counts while a batch drains again and again, and the gain of its steps.

    Args:
        widest: most masks of a sequence; every draft is accepted.
    """
    count = 16
    table = SlotTable(count, 2 * widest + 1)
    table.adaptive[:], table.widest[:], table.limit[:] = True, widest, 1 << 30
    drafting = Drafting(table, widest, 1 << 30, lambda: H200)
    drafting.admit(np.arange(count), count, {})
    drafts, spent, alone = np.zeros(count, dtype=np.int64), 0.0, 0.0
    for step in range(640):
        running = np.arange(count - step % 64 // 8)  # half as many would be planned for at once
        drafting.plan(running, lambda: 1 << 30)
        masks_D, drafts_D = table.masks[running], drafts[running]
        table.rows[running] = rows_D = 1 + drafts_D + masks_D
        rows, tokens = int(rows_D.sum()), 1 + drafts_D
        seconds, single = (float(H200(np.array([some]), 0, len(running))[0]) for some in (rows, len(running)))
        if step >= 2 * CONSTANTS.uncounted:
            spent, alone = spent + seconds, alone + single * float(tokens.sum()) / len(running)
        right, no = np.ones(len(running), dtype=np.bool_), np.zeros(len(running), dtype=np.bool_)
        report = StepReport(
            slots_D=running, rows_D=rows_D, outcome=outcome_of(drafts_D, drafts_D, right, right, tokens), emit_D=tokens,
            ended_D=no, can_draft=True, prefill_rows=0, forward_rows=float(rows), kv_tokens=0,
            seconds=seconds, forward_seconds=seconds,
        )  # fmt: skip
        drafting.observe(report)
        drafts[running] = masks_D
    found = gain_of(drafting.autoregressive_seconds, drafting.decode_seconds)
    assert found is not None
    return found, alone / spent


@pytest.mark.parametrize("widest", [0, 8])
def test_the_counted_gain_is_that_of_each_step_while_a_batch_drains(widest: int) -> None:
    found, true = drained(widest)
    assert true > 2 or not widest
    assert found == pytest.approx(true, rel=0.02)
