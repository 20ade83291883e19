"""Forwards that are done when the call returns: packed on CPU by kernels, their outcome on the host at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from wedlm_core.decoding.tops import Tops
from wedlm_core.engine.forward.groups import gather_groups, wide_runs
from wedlm_core.engine.forward.logits import AnyPicks
from wedlm_core.engine.forward.outcome import fetch, join
from wedlm_core.engine.forward.pack_cpu import CpuStep, PackedInput, choices_of
from wedlm_core.engine.forward.runner import Runner, StepDetail
from wedlm_core.engine.forward.tops import TopWords, rows_of, top_words
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome
from wedlm_core.statistics import TopTokens

__all__ = ["PlainLaunch"]


class PlainLaunch:
    """Packs, runs and advances on CPU; the plan's counts are exact."""

    def __init__(self) -> None:
        self._step: CpuStep | None = None

    def forward(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """See :meth:`Runner.forward`."""
        step = self._step_of(runner)
        if not runner.config.trace and step.takes(plan, table):
            return _by_kernels(runner, step, plan), []
        return _by_groups(runner, step, plan, table)

    def _step_of(self, runner: Runner) -> CpuStep:
        """The kernels on the runner's state."""
        if self._step is None or self._step.state is not runner.state:
            self._step = CpuStep(runner.state, runner.pool.page_size)
        return self._step


def _by_kernels(runner: Runner, step: CpuStep, plan: ForwardPlan) -> StepOutcome:
    """Where windows have kernels: no small tensor operation around model and choices."""
    packed = step.pack(plan)
    slots_D = _note_drafts(runner, plan)
    runner.profile.lap("pack")
    if not packed.picks.total:
        _run_model(runner, packed.input(), torch.empty(0, dtype=torch.int64))
        return join([])
    draw, advancing = None, step.advancing(plan)
    if runner.model_runner.draws:
        draw = runner.choose.draw(packed.picks, runner.state, plan.slots_S, advancing[0])
    if draw is not None:
        drawn = runner.model_runner.draw(packed.rows, draw)
        runner.unread_rows = packed.rows.total - drawn.logit_rows
        runner.profile.lap("model")
        outcome, tops = advancing[1], runner.choose.tops(draw, drawn)
    else:
        picks = _asking(runner, packed.picked())
        hidden_RD = _run_model(runner, packed.input(), picks.read_rows)
        choice = runner.choose.by_row(hidden_RD, picks.alone(), runner.state, plan.slots_S)
        runner.profile.lap("choose")
        outcome, tops = step.advance(plan, choices_of(choice)), choice.tops
        runner.profile.lap("advance")
    if tops is None:
        return outcome
    rows_D = torch.from_numpy(plan.decode_S[: len(slots_D)])
    last_D1 = rows_D.cumsum(0)[:, None] - 1
    row_DC = (last_D1 + 1 - rows_D[:, None] + torch.arange(int(rows_D.max()))).minimum(last_D1)
    return replace(outcome, tops=_reported(runner, tops, row_DC, plan))


def _by_groups(
    runner: Runner, step: CpuStep, plan: ForwardPlan, table: SlotTable
) -> tuple[StepOutcome, list[StepDetail]]:
    """Any strategies: the groups' windows are laid out and advanced as tensors."""
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    rows_D = runner.bounds(table, slots_D).next_rows(plan.decode_S[: len(slots_D)], table.left(slots_D))
    context_S = torch.from_numpy(plan.cached_S + plan.prefill_S)
    runs = wide_runs(plan, table, runner.decodings, rows_D)
    groups = gather_groups(runs, runner.state, torch.from_numpy(plan.slots_S), context_S)
    if not groups:
        return _by_kernels(runner, step, plan), []
    packed, picks = step.pack_groups(plan, groups)
    _note_drafts(runner, plan)
    runner.profile.lap("pack")
    picks = _asking(runner, picks)
    hidden_RD = _run_model(runner, packed, picks.read_rows)
    choice_F = runner.choose(hidden_RD, picks.alone(), runner.state, plan.slots_S)
    runner.profile.lap("choose")
    parts, details = [], []
    for advance in runner.advance_groups(groups, choice_F):
        parts.append(fetch(advance.detail.commit, advance.next_rows_S))
        runner.profile.lap("fetch")
        details.append(advance.detail)
    tops = None if choice_F.tops is None else _reported(runner, choice_F.tops, rows_of(groups), plan)
    return join(parts, tops), details


def _reported(runner: Runner, tops: Tops, row_DC: torch.Tensor, plan: ForwardPlan) -> TopTokens | None:
    """The most likely tokens of the rows at the places of commits, of sequences that report them."""
    words = TopWords.of(runner.state, plan.slots_S, len(row_DC))
    return None if words is None else words.read(top_words(tops, row_DC).numpy())


def _note_drafts(runner: Runner, plan: ForwardPlan) -> IntArray:
    """Let adjustments see the drafts of this forward; its decoding sequences."""
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    runner.state.note_drafts(slots_D, (plan.cached_S + plan.prefill_S)[: len(slots_D)])
    return slots_D


def _asking(runner: Runner, picks: AnyPicks) -> AnyPicks:
    """The picks, and which of them need logits.

    Where all states are computed anyway, all rows get logits: they show keys and values that are no numbers; those must
    not stay in a page, since other sequences mask its entries.
    """
    return runner.choose.asking(picks, runner.state) if runner.model_runner.skips else picks


def _run_model(runner: Runner, packed: PackedInput, read_R: torch.Tensor) -> torch.Tensor:
    """Hidden states of the rows that are read."""
    hidden_RD = runner.model_runner.run(packed.id_T, packed.position_T, packed.kv_entry_T, packed.rows, read_R)
    runner.unread_rows = packed.id_T.shape[0] - read_R.shape[0]
    runner.profile.lap("model")
    return hidden_RD
