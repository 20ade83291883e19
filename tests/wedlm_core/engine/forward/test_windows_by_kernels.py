"""Windows by kernels around a forward equal tensor operations: rows, picks, words and state, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

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
from wedlm_core.decoding.sampling import Choice
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.strategies.verified import VerifiedDecoding
from wedlm_core.decoding.strategies.window import BlockwiseDecoding
from wedlm_core.decoding.window_state import empty_windows
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.groups import WideRun
from wedlm_core.engine.forward.outcome import outcome_of
from wedlm_core.engine.forward.pack_gpu import Shape, facts_at_places, plan_facts
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.window_work import Finished, GroupsPrepared, Prepared, WindowsByGroups
from wedlm_core.engine.forward.windows_by_kernels import WindowsByKernels
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.model.weights import load_model
from wedlm_core.statistics import OUTCOME_KINDS
from wedlm_core.tokenizer import Tokenizer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where the kernels are interpreted


@cache
def runner_of(folder: Path) -> Runner:
    config = EngineConfig(max_num_seqs=SLOTS, max_window=WIDEST, page_size=PAGE, max_model_len=128, num_pages=8)
    runner = Engine(load_model(folder, device=str(DEVICE)), Tokenizer.load(folder), config)._runner
    runner.mask_token_id = runner.state.mask_token_id = MASK
    return runner


class Given:
    """Stands for a chooser: the choices of the decode rows are known."""

    def __init__(self, chosen: Choice) -> None:
        self._chosen = Choice.new(torch.empty, len(chosen.token_R), 0, DEVICE)
        self._chosen.put(slice(None), chosen)

    def __call__(self, hidden_TD: torch.Tensor, picks: object, state: object, slots_S: object) -> Choice:
        count = self._chosen.token_R.shape[0]
        real = replace(picks, flat_R=picks.flat_R[:count])  # type: ignore[type-var, attr-defined]
        return spread(self._chosen, real)

    def by_row(self, hidden_TD: torch.Tensor, picks: object, state: object, slots_S: object) -> Choice:
        missing = picks.row_R.shape[0] - self._chosen.token_R.shape[0]  # type: ignore[attr-defined]
        parts = (self._chosen.token_R, self._chosen.entropy_R, self._chosen.logprob_R)
        padded = [torch.nn.functional.pad(part, (0, missing), value=7) for part in parts]  # padding says anything
        return Choice(token_R=padded[0], entropy_R=padded[1], logprob_R=padded[2])


def loosely(plan: ForwardPlan, rng: random.Random) -> ForwardPlan:
    """The plan as a host has it that does not wait: decode rows, and KV entries without prefill rows, are bounds."""
    slack_S = np.array([rng.randint(0, 3) for _ in plan.slots_S])
    return replace(
        plan,
        decode_S=plan.decode_S + np.where(plan.decode_S > 0, slack_S, 0),
        cached_S=plan.cached_S + np.where(plan.prefill_S > 0, 0, slack_S),
    )


def compare_packed(found: Prepared, expected: GroupsPrepared, taken: torch.Tensor) -> None:
    """``taken``: the places that have sequences, of those of ``found``."""
    for name in ("id_T", "position_T", "kv_entry_T"):
        assert torch.equal(getattr(found.batch, name), getattr(expected.batch, name)), name
    mine, other = found.batch.rows, expected.batch.rows
    for one in (mine, other):
        assert {t.dtype for t in (one.cu_rows_Z, one.kv_lengths_S, one.pages_SP)} == {torch.int32}
    counts = mine.cu_rows_Z.diff()
    assert torch.equal(counts[taken], other.cu_rows_Z.diff())
    assert int(counts.sum()) == int(other.cu_rows_Z[-1]), "places without a sequence have no rows"
    assert int(mine.cu_rows_Z[0]) == 0
    for given, wanted in ((mine.kv_lengths_S, other.kv_lengths_S), (mine.pages_SP, other.pages_SP)):
        assert torch.equal(given[taken], wanted)
        assert int(given.sum()) == int(wanted.sum()), "likewise no entries and no pages"
    assert torch.equal(found.context_S[taken], expected.context_S)
    if expected.picks is None:
        assert found.picks is None
        return
    assert found.picks is not None
    real = int((expected.picks.flat_R < expected.picks.places).sum())
    for name in ("row_R", "slot_R", "position_R"):
        mine, other = getattr(found.picks, name), getattr(expected.picks, name)
        assert mine.shape == other.shape
        assert torch.equal(mine[:real], other[:real]), name
    assert (found.picks.row_R[real:] == 0).all()
    assert torch.isin(found.picks.slot_R[real:], expected.picks.slot_R).all()


def compare_words(found: Finished, expected: Finished, decoding: int) -> None:
    mine, other = (
        outcome_of(one.words.reshape(one.shapes[0][0] if one is found else decoding, -1)[:decoding].cpu().numpy())
        for one in (found, expected)
    )
    for name in OUTCOME_KINDS:
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)


def whole_state(runner: Runner) -> dict[str, torch.Tensor]:
    return {**snapshot(runner), "context_S": runner.state.context_S.clone()}


@any_step(max_examples=12)
def test_a_step_equals_the_step_by_tensors(
    qwen3_folder: Path, decoding: list[Case], prefilling: list[tuple[int, int]], order: list[int], seed: int
) -> None:
    if not decoding and not prefilling:
        return
    runner, rng = runner_of(qwen3_folder), np.random.default_rng(seed)
    plan, table = place(runner, decoding, prefilling, order, rng)
    runner.state.context_S.copy_(torch.from_numpy(rng.integers(0, 50, SLOTS)))
    slots_S, known_S = torch.from_numpy(plan.slots_S), torch.from_numpy(plan.cached_S + plan.prefill_S)
    runner.state.context_S[slots_S.to(DEVICE)] = known_S.to(DEVICE)
    runner.state.push_pages(range(SLOTS))
    loose = loosely(plan, random.Random(seed))
    counts_S = loose.prefill_S + loose.decode_S
    shape = Shape(
        total=int(counts_S.sum()) + seed % 40,
        max_rows=int(counts_S.max()),
        max_kv=int((loose.cached_S + counts_S).max()),
        wanted=int(loose.decode_S.sum()),
    )
    slots_D, rows_D = plan.slots_S[: len(decoding)], plan.decode_S[: len(decoding)]
    bounds = runner.bounds(table, slots_D)
    runs = bounds.runs(loose.decode_S[: len(decoding)], bounds.next_rows(rows_D, table.left(slots_D)))
    facts_3S = torch.from_numpy(plan_facts(loose)).to(DEVICE)
    free, more = (int(n) if decoding else 0 for n in rng.integers(0, 3, 2))
    stop, places = len(decoding) + free, len(plan.slots_S) + free + more
    taken = torch.tensor([*range(len(decoding)), *range(stop, stop + len(prefilling))], device=DEVICE)
    placed_3S = torch.from_numpy(facts_at_places(plan_facts(loose), len(decoding), stop, places)).to(DEVICE)
    before = whole_state(runner)

    groups, kernels = WindowsByGroups(), WindowsByKernels()
    expected = groups.prepare(runner, facts_3S, runs, shape)
    padded = (*runs[:-1], replace(runs[-1], stop=stop)) if runs else runs
    found = kernels.prepare(runner, placed_3S, padded, shape)
    compare_packed(found, expected, taken)
    if not decoding:
        return
    choose, chosen = runner.choose, choices_of(decoding, rng)
    try:
        runner.choose = Given(chosen)  # type: ignore[assignment]
        hidden_TD = torch.zeros(shape.total, 1)
        words = groups.finish(runner, expected, hidden_TD, plan.slots_S)
        after = whole_state(runner)
        restore(runner, before)
        assert all(torch.equal(value, before[name]) for name, value in whole_state(runner).items())
        found_words = kernels.finish(runner, found, hidden_TD, plan.slots_S)
    finally:
        runner.choose = choose
    compare_words(found_words, words, len(decoding))
    for name, value in whole_state(runner).items():
        assert torch.equal(value, after[name]), name


@pytest.mark.parametrize(
    ("slots", "places", "decodings", "taken"),
    [
        (1024, 1024, [VerifiedDecoding()], True),
        (8, 8, [], True),
        (8, 8, [VerifiedDecoding(), BlockwiseDecoding()], False),
        (1025, 8, [VerifiedDecoding()], False),
        (8, 1025, [VerifiedDecoding()], False),
    ],
)
def test_what_a_program_cannot_hold_is_left_to_tensors(
    slots: int, places: int, decodings: list[Decoding], taken: bool
) -> None:
    state = SimpleNamespace(windows=empty_windows(slots, places, torch.device("cpu")))
    runs = [WideRun(decoding=one, start=0, stop=1, width=1) for one in decodings]
    assert WindowsByKernels.takes(state, runs) is taken  # type: ignore[arg-type]
