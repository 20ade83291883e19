"""The one packed forward: rows in, commits out.

Per step: pack the rows of every decoding sequence's window after prefill chunks, run the decoder once, choose tokens
on the rows that need logits, advance the windows, and bring one small result to the host. Nothing here loops over
sequences. On a CPU kernels pack, and the outcome is on the host at once; elsewhere a launch strategy does that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.sampling import Choice, Tops
from wedlm_core.decoding.strategies import Commit, Decoding, RowChoices
from wedlm_core.decoding.window_state import RowLayout, Window
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group, RowBounds, gather_groups
from wedlm_core.engine.forward.logits import AnyPicks, Chooser
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.outcome import fetch, join
from wedlm_core.engine.forward.pack_cpu import CpuStep, PackedInput, choices_of
from wedlm_core.engine.forward.tops import TopWords, rows_of, top_words
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome
from wedlm_core.statistics import TopTokens


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """Everything a trace needs of one decoding group: the window before the forward, its layout, its choices."""

    window: Window
    layout: RowLayout
    choices: RowChoices
    commit: Commit


@dataclass(frozen=True, kw_only=True)
class Advance:
    """One group after a forward: its outcome, and the rows of its next forward (int64 ``[S]``)."""

    detail: StepDetail
    next_rows_S: Tensor


class Launch(Protocol):
    """How forwards are packed on a device, run and brought to the host."""

    def forward(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """See :meth:`Runner.forward`."""
        ...


class Runner:
    """Model, windows and parameters of one engine, on one device.

    Args:
        model_runner: the decoder over packed rows.
        launch: how forwards are launched; None on a CPU that waits for each.
        config: engine configuration.
        mask_token_id: token fed for a mask.
        vocab_limit: ids from here on are vocabulary padding.
        max_positions: positions a sequence can reach, windows included.
        decodings: the decoding implementations, numbered as in ``SlotTable.group``.

    Attributes:
        model, pool, backend, device: of the model runner.
        state: of each slot on the device.
        choose: logits and choices of picked rows.
        unread_rows: rows of the last forward that were not read after the last layer, and cost less for that
            (``ModelRunner.unread_row``).
    """

    def __init__(
        self,
        *,
        model_runner: ModelRunner,
        launch: Launch | None,
        config: EngineConfig,
        mask_token_id: int,
        vocab_limit: int,
        max_positions: int,
        decodings: Seq[Decoding],
    ) -> None:
        self.model_runner, self.launch, self.config = model_runner, launch, config
        self.model, self.pool, self.backend = model_runner.model, model_runner.pool, model_runner.backend
        self.device, self.padding = model_runner.device, model_runner.padding
        self.mask_token_id, self.decodings = mask_token_id, list(decodings)
        self.choose = Chooser(
            self.device,
            head=model_runner.head,
            chunk_rows=config.logits_rows(self.model.config.vocab_size),
            padding=self.padding,
            mask_token_id=mask_token_id,
            vocab_limit=vocab_limit,
        )
        self.state = DeviceState(config, self.decodings, mask_token_id, max_positions, self.device)
        self.unread_rows = 0
        self._use_step()

    def _use_step(self) -> None:
        """Let the CPU kernels work on the state."""
        self._step = None if self.launch is not None else CpuStep(self.state, self.pool.page_size)

    def over(self, state: DeviceState, config: EngineConfig) -> Runner:
        """A runner over other state that shares everything else with this one."""
        other = copy.copy(self)
        other.state, other.config = state, config
        other._use_step()
        return other

    @torch.inference_mode()
    def forward(self, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """Run one packed forward, advance every decoding sequence of it and wait for the outcome.

        Args:
            plan: decoding sequences first, grouped; its counts are exact.
            table: slots; groups and windows are read.

        Returns:
            The outcome of the D decoding sequences in plan order, and details of its groups: always with
            ``EngineConfig.trace``, else where the launch strategy has them anyway.
        """
        if self._step is None:
            assert self.launch is not None
            return self.launch.forward(self, plan, table)
        outcome = None if self.config.trace else _by_kernels(self, self._step, plan, table)
        return _by_groups(self, self._step, plan, table) if outcome is None else (outcome, [])

    def bounds(self, table: SlotTable, slots_D: IntArray) -> RowBounds:
        """Bounds of the rows of a forward that is about to run, and of those of the next one."""
        return RowBounds.of(table, slots_D, self.decodings)

    def advance_groups(self, groups: list[Group], chosen_F: Choice) -> Iterator[Advance]:
        """Commit and refill each group's windows, and remember the tokens."""
        for given in groups:
            # Strategies put other tensors in a window's place; recorded work makes a group once, for all its replays.
            group = replace(given, window=copy.copy(given.window))
            shape = group.layout.id_SR.shape
            span = slice(group.base, group.base + shape.numel())
            choices = RowChoices(
                token_SR=chosen_F.token_R[span].view(shape),
                entropy_SR=chosen_F.entropy_R[span].view(shape),
                logprob_SR=chosen_F.logprob_R[span].view(shape),
            )
            before = _copy(group.window) if self.config.trace else group.window
            commit = group.decoding.advance(group.window, group.params, group.layout, choices)
            group.decoding.refill(group.window, group.params, self.mask_token_id)
            self.state.windows.scatter(group.slots_S, group.window)
            self._remember(group, commit)
            detail = StepDetail(window=before, layout=group.layout, choices=choices, commit=commit)
            yield Advance(detail=detail, next_rows_S=group.window.length_S + group.layout.has_head_S)

    def _remember(self, group: Group, commit: Commit) -> None:
        """Append committed tokens to the device's token buffer, where a recompute would find them."""
        tokens_SL = self.state.tokens_SL
        place_C = torch.arange(commit.token_SC.shape[1], device=self.device)
        # Commits may run past the output's end, never past the windows' reach, which the buffer has room for.
        position_SC = (group.context_S + group.layout.has_head_S)[:, None] + place_C
        nowhere = tokens_SL.shape[1] - 1
        position_SC = torch.where(place_C < commit.count_S[:, None], position_SC, nowhere)
        tokens_SL[group.slots_S[:, None], position_SC] = commit.token_SC


def _copy(window: Window) -> Window:
    return Window(**{f.name: getattr(window, f.name).clone() for f in fields(window)})


def _by_kernels(runner: Runner, step: CpuStep, plan: ForwardPlan, table: SlotTable) -> StepOutcome | None:
    """Without small tensor operations around model and choices; None where windows have no kernels."""
    if not step.takes(plan, table):
        return None
    packed = step.pack(plan)
    if np.count_nonzero(runner.state.reads_history):
        _note_drafts(runner, plan)
    if not packed.picks.total:
        _run_model(runner, packed.input(), torch.empty(0, dtype=torch.int64))
        return join([])
    draw, advancing, by_model = None, step.advancing(plan), runner.model_runner.draw
    if by_model is not None and runner.model_runner.draws:
        draw = runner.choose.draw(packed.picks, runner.state, plan.slots_S, advancing[0])
    if by_model is not None and draw is not None:
        drawn = by_model(packed.rows, draw)
        runner.unread_rows = packed.rows.total - drawn.logit_rows
        outcome, tops = advancing[1], runner.choose.tops(draw, drawn) if draw.most else None
    else:
        picks = _asking(runner, packed.picked())
        hidden_RD = _run_model(runner, packed.input(), picks.read_rows)
        choice = runner.choose.by_row(hidden_RD, picks.alone(), runner.state, plan.slots_S)
        outcome, tops = step.advance(plan, choices_of(choice)), choice.tops
    if tops is None:
        return outcome
    rows_D = torch.from_numpy(plan.decode_S[: np.count_nonzero(plan.decode_S)])
    last_D1 = rows_D.cumsum(0)[:, None] - 1
    row_DC = (last_D1 + 1 - rows_D[:, None] + torch.arange(int(rows_D.max()))).minimum(last_D1)
    return replace(outcome, tops=_reported(runner, tops, row_DC, plan))


def _by_groups(
    runner: Runner, step: CpuStep, plan: ForwardPlan, table: SlotTable
) -> tuple[StepOutcome, list[StepDetail]]:
    """Any strategies: the groups' windows are laid out and advanced as tensors."""
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    rows_D, bounds = plan.decode_S[: len(slots_D)], runner.bounds(table, slots_D)
    context_S = torch.from_numpy(plan.cached_S + plan.prefill_S)
    runs = bounds.runs(rows_D, bounds.next_rows(rows_D, table.left(slots_D)))
    groups = gather_groups(runs, runner.state, torch.from_numpy(plan.slots_S), context_S)
    if not groups and (outcome := _by_kernels(runner, step, plan, table)) is not None:
        return outcome, []
    packed, picks = step.pack_groups(plan, groups)
    _note_drafts(runner, plan)
    picks = _asking(runner, picks)
    hidden_RD = _run_model(runner, packed, picks.read_rows)
    choice_F = runner.choose(hidden_RD, picks.alone(), runner.state, plan.slots_S)
    parts, details = [], []
    for advance in runner.advance_groups(groups, choice_F):
        parts.append(fetch(advance.detail.commit, advance.next_rows_S))
        details.append(advance.detail)
    tops = None if choice_F.tops is None else _reported(runner, choice_F.tops, rows_of(groups), plan)
    return join(parts, tops), details


def _reported(runner: Runner, tops: Tops, row_DC: torch.Tensor, plan: ForwardPlan) -> TopTokens | None:
    """The most likely tokens of the rows at the places of commits, of sequences that report them."""
    words = TopWords.of(runner.state, plan.slots_S, len(row_DC), len(row_DC))
    return None if words is None else words.read(top_words(tops, row_DC).numpy())


def _note_drafts(runner: Runner, plan: ForwardPlan) -> None:
    """Store the drafts of this forward where adjustments look for them."""
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    runner.state.note_drafts(slots_D, (plan.cached_S + plan.prefill_S)[: len(slots_D)])


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
    return hidden_RD
