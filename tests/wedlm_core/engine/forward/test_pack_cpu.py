"""The CPU kernels equal tensor operations: the same rows, picks, outcomes and window state, bit for bit."""

from __future__ import annotations

import random
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.engine.engines import loaded, requests_of, run
from testing.engine.mixed_requests import request_of
from testing.engine.pack_oracle import Batch, pack, pick
from testing.engine.step_cases import (
    MASK,
    PAGE,
    SLOTS,
    WIDEST,
    Case,
    any_step,
    choices_of,
    place,
    restore,
    snapshot,
    spread,
)  # fmt: skip
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.groups import Group, gather_groups
from wedlm_core.engine.forward.logits import PickedRows, Picks
from wedlm_core.engine.forward.outcome import fetch
from wedlm_core.engine.forward.pack_cpu import CpuStep, PackedInput
from wedlm_core.engine.forward.pack_cpu import choices_of as as_arrays
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.statistics import OUTCOME_KINDS
from wedlm_core.types import SamplingParams


@cache
def runner_of(folder: Path) -> Runner:
    config = EngineConfig(max_num_seqs=SLOTS, max_window=WIDEST, page_size=PAGE, max_model_len=128, num_pages=8)
    runner = Engine(*loaded(folder), config)._runner
    runner.mask_token_id = runner.state.mask_token_id = MASK
    return runner


def plain_groups(runner: Runner, plan: ForwardPlan, table: SlotTable) -> list[Group]:
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    rows_D, bounds = plan.decode_S[: len(slots_D)], runner.bounds(table, slots_D)
    context_S = torch.from_numpy(plan.cached_S + plan.prefill_S)
    runs = bounds.runs(rows_D, bounds.next_rows(rows_D, table.left(slots_D)))
    return gather_groups(runs, runner.state, torch.from_numpy(plan.slots_S), context_S)


def check_input(found: PackedInput, expected: Batch) -> None:
    for name in ("id_T", "position_T", "kv_entry_T"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for name in ("counts_S", "cached_S", "starts_S"):
        np.testing.assert_array_equal(getattr(found.rows, name), getattr(expected.rows, name))
    assert torch.equal(found.rows.pages_SP, expected.rows.pages_SP)
    assert found.rows.pages_SP.is_contiguous()


def check_picks(found: PickedRows, expected: Picks) -> None:
    for f in fields(found):
        value = getattr(expected, f.name)
        same = torch.equal(getattr(found, f.name), value) if f.name.endswith("_R") else getattr(found, f.name) == value
        assert same, f.name


def check_groups(step: CpuStep, plan: ForwardPlan, groups: list[Group], batch: Batch) -> None:
    packed, picks = step.pack_groups(plan, groups)
    check_input(packed, batch)
    check_picks(picks, pick(groups, batch))


def check_outcome(found: StepOutcome, expected: StepOutcome) -> None:
    places = found.token_DC.shape[1]
    for name in OUTCOME_KINDS:
        mine, other = getattr(found, name), getattr(expected, name)
        assert mine.dtype == other.dtype, name
        if name.endswith("_DC"):
            assert not other[:, places:].any(), "no place that is left out says anything"
            other = other[:, :places]
        np.testing.assert_array_equal(mine, other, err_msg=name)


@any_step(max_examples=30)
def test_a_step_equals_the_step_by_tensors(
    qwen3_folder: Path, decoding: list[Case], prefilling: list[tuple[int, int]], order: list[int], seed: int
) -> None:
    if not decoding and not prefilling:
        return
    runner, rng = runner_of(qwen3_folder), np.random.default_rng(seed)
    plan, table = place(runner, decoding, prefilling, order, rng)
    step = CpuStep(runner.state, PAGE)
    assert step.takes(plan, table)
    before = snapshot(runner)

    groups = plain_groups(runner, plan, table)
    batch, packed = pack(plan, groups, runner.state, PAGE), step.pack(plan)
    found = packed.picked()
    check_input(packed.input(), batch)
    if not groups:
        assert found.row_R.shape == (0,)
        return
    picks = pick(groups, batch)
    check_picks(found, picks)
    check_groups(step, plan, groups, batch)

    chosen = choices_of(decoding, rng)
    (advance,) = runner.advance_groups(groups, spread(chosen, picks))
    expected, after = fetch(advance.detail.commit, advance.next_rows_S), snapshot(runner)
    restore(runner, before)
    check_outcome(step.advance(plan, as_arrays(chosen)), expected)
    for name, value in snapshot(runner).items():
        assert torch.equal(value, after[name]), name


@pytest.mark.parametrize("seed", range(3))
def test_layouts_of_all_strategies_pack_as_by_the_oracle(agreeing_folder: Path, seed: int) -> None:
    """On the states of real engines: all strategies mixed, chunked prefill, preemption, shared prefixes."""
    rng = random.Random(seed)
    page = rng.choice([2, 8])
    config = EngineConfig(
        max_num_seqs=8, max_batch_rows=rng.choice([20, 64]), prefill_chunk=rng.choice([None, 3]), max_window=4,
        page_size=page, num_pages=rng.choice([40, 400]), overlap=False,
    )  # fmt: skip
    engine = Engine(*loaded(agreeing_folder), config)
    runner, forward, mixed = engine._runner, engine._runner.forward, 0

    def checked(plan: ForwardPlan, table: SlotTable) -> object:
        nonlocal mixed
        groups = plain_groups(runner, plan, table)
        if groups:
            batch = pack(plan, groups, runner.state, page)
            check_groups(CpuStep(runner.state, page), plan, groups, batch)
        mixed += len(groups) > 1
        return forward(plan, table)

    runner.forward = checked  # type: ignore[method-assign, assignment]
    for number in range(12):
        engine.add(request_of(rng.randrange(40), str(number)))
        engine.step()
    while engine.has_work():
        engine.step()
    assert mixed > 5


@pytest.mark.parametrize("trace", [False, True])
def test_only_traced_engines_advance_by_groups(
    agreeing_folder: Path, trace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their outputs are compared where engines of all kinds are."""
    asked, takes = list[bool](), CpuStep.takes

    def noted(step: CpuStep, plan: ForwardPlan, table: SlotTable) -> bool:
        asked.append(takes(step, plan, table))
        return asked[-1]

    monkeypatch.setattr(CpuStep, "takes", noted)
    engine = Engine(*loaded(agreeing_folder), EngineConfig(max_window=4, trace=trace))
    params = SamplingParams(max_tokens=5, strategy="verified", window_size=3)
    assert bool(run(engine, requests_of([[5, 6]], params))[0].trace) is trace
    assert asked == [] if trace else any(asked)
