"""The CPU kernels equal tensor operations: the same rows, picks, outcomes and window state, bit for bit."""

from __future__ import annotations

import random
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.engine.engines import run
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
from wedlm_core.engine.forward.groups import Group, gather_groups, wide_runs
from wedlm_core.engine.forward.logits import PickedRows, Picks
from wedlm_core.engine.forward.outcome import fetch
from wedlm_core.engine.forward.pack_cpu import CpuStep, PackedInput
from wedlm_core.engine.forward.pack_cpu import choices_of as as_arrays
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.statistics import OUTCOME_KINDS
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams


@cache
def loaded(folder: Path) -> tuple[Decoder, Tokenizer]:
    return load_model(folder), Tokenizer.load(folder)


@cache
def runner_of(folder: Path) -> Runner:
    config = EngineConfig(max_num_seqs=SLOTS, max_window=WIDEST, page_size=PAGE, max_model_len=128, num_pages=8)
    runner = Engine(*loaded(folder), config)._runner
    runner.mask_token_id = runner.state.mask_token_id = MASK
    return runner


# ---- one step ---------------------------------------------------------------------------------------------


def plain_groups(runner: Runner, plan: ForwardPlan, table: SlotTable) -> list[Group]:
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    rows_D = runner.bounds(table, slots_D).next_rows(plan.decode_S[: len(slots_D)], table.left(slots_D))
    context_S = torch.from_numpy(plan.cached_S + plan.prefill_S)
    runs = wide_runs(plan, table, runner.decodings, rows_D)
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


@any_step(max_examples=300)
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


@pytest.mark.parametrize("seed", range(6))
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


# ---- whole runs -------------------------------------------------------------------------------------------


def requests_mixed(strategies: tuple[str, ...]) -> list[Request]:
    """Short and long prompts, stops of both kinds, sampling, outputs that end at once or late."""
    requests = []
    for kind in range(16):
        prompt = (*((5 * i + i * i) % 300 for i in range((1, 7, 16, 30)[kind % 4])), kind % 7)
        strategy = strategies[kind % (len(strategies) if kind < 8 else 2)]  # a third one is gone before the end
        params = SamplingParams(
            max_tokens=(1, 9, 25, 40)[kind // 3 % 4],
            temperature=(0.0, 0.9)[kind % 2],
            top_k=(0, 0, 20)[kind % 3],
            stop=("e",) if kind % 5 == 4 else (),
            stop_token_ids=tuple(range(0, 320, 7)) if kind % 4 == 3 else (),
            ignore_eos=kind % 2 == 0,
            strategy=strategy,
            window_size=1 + kind % 4,
            logprobs=strategy != "streaming",
        )
        requests.append(Request(request_id=str(kind), prompt_token_ids=prompt, params=params, seed=kind))
    return requests


def told(generation: Generation) -> tuple[object, ...]:
    """All of a generation but its times."""
    return tuple(getattr(generation, f.name) for f in fields(Generation) if f.name != "timings")


class Counted:
    """Forwards of an engine, by the way they went."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, enabled: bool) -> None:
        self.kernels, self.groups = 0, 0
        takes = CpuStep.takes

        def counted(step: CpuStep, plan: ForwardPlan, table: SlotTable) -> bool:
            taken = enabled and takes(step, plan, table)
            self.kernels += taken
            self.groups += not taken
            return taken

        monkeypatch.setattr(CpuStep, "takes", counted)


@pytest.mark.parametrize("strategies", [("verified", "autoregressive"), ("verified", "autoregressive", "streaming")])
@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(max_num_seqs=8, max_window=4, page_size=8),
        EngineConfig(max_num_seqs=8, max_window=4, page_size=2, prefill_chunk=3, max_batch_rows=40, num_pages=60),
        EngineConfig(max_num_seqs=3, max_window=4, page_size=8, logits_chunk_rows=5, prefix_caching=False),
    ],
    ids=["plain", "pressed", "chunked"],
)
def test_runs_are_the_same_without_it(
    agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch, strategies: tuple[str, ...], config: EngineConfig
) -> None:
    found = []
    for enabled in (True, False):
        with monkeypatch.context() as patch:
            counted = Counted(patch, enabled=enabled)
            done = run(Engine(*loaded(agreeing_folder), config), requests_mixed(strategies))
        found.append([told(generation) for generation in done])
        assert (counted.kernels > 0) == enabled
        if enabled:
            assert (counted.groups > 0) == ("streaming" in strategies), "both ways work on the same state, in turns"
    assert found[0] == found[1]


def test_traced_engines_advance_by_groups(agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, enabled=True)
    requests = requests_mixed(("verified", "autoregressive"))[:3]
    done = run(Engine(*loaded(agreeing_folder), EngineConfig(max_window=4, trace=True)), requests)
    assert all(generation.trace for generation in done)
    assert (counted.kernels, counted.groups) == (0, 0)
