"""The one packed forward: rows in, commits out.

Per step: pack the rows of every decoding sequence's window after prefill chunks, run the decoder once, choose tokens
on the rows that need logits, advance the windows, and bring one small result to the host. Nothing here loops over
sequences. The launch strategy, which the runner is handed, decides how rows are packed and whether the host waits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.sampling import Choice
from wedlm_core.decoding.strategies import Commit, Decoding, RowChoices
from wedlm_core.decoding.window_state import RowLayout, Window
from wedlm_core.engine.forward.bounds import RowBounds
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group
from wedlm_core.engine.forward.logits import Chooser
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.profile import NO_PROFILE, StepProfile
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome

__all__ = ["Advance", "Launch", "Runner", "StepDetail"]


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
    """How a runner's forwards are packed, run and brought to the host."""

    def forward(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """See :meth:`Runner.forward`."""
        ...


class Runner:
    """Model, windows and parameters of one engine, on one device.

    Args:
        model_runner: the decoder over packed rows.
        launch: how forwards are launched.
        config: engine configuration.
        mask_token_id: token fed for a mask.
        vocab_limit: ids from here on are vocabulary padding.
        max_positions: positions a sequence can reach, windows included.
        decodings: the decoding implementations, numbered as in ``SlotTable.group``.

    Attributes:
        model, pool, backend, device: of the model runner.
        state: of each slot on the device.
        profile: stopwatch of the phases; does nothing unless replaced.
        choose: logits and choices of picked rows.
        unread_rows: rows of the last forward that were not read after the last layer, and cost less for that
            (``ModelRunner.unread_row``).
    """

    def __init__(
        self,
        *,
        model_runner: ModelRunner,
        launch: Launch,
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
        self.profile: StepProfile = NO_PROFILE
        self.unread_rows = 0

    def over(self, state: DeviceState, config: EngineConfig) -> Runner:
        """A runner over other state, without a profile, that shares everything else with this one."""
        other = copy.copy(self)
        other.state, other.config, other.profile = state, config, NO_PROFILE
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
        return self.launch.forward(self, plan, table)

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
            self.profile.lap("advance")
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
