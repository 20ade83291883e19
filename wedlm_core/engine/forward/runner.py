"""The one packed forward: rows in, commits out.

Per step: lay out the windows of every decoding sequence, pack their rows behind prefill chunks, run the
decoder once, choose tokens on the rows that need logits, advance the windows, and bring one small result
to the host. Nothing here loops over sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention import AttentionBackend, DeviceAttentionBackend, DeviceRows, PackedRows
from wedlm_core.attention.paged_cpu import PagedCpuPlan
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.sampling import Choice
from wedlm_core.decoding.strategies import Commit, Decoding, RowChoices, StreamingDecoding, VerifiedDecoding
from wedlm_core.decoding.window import RowLayout, Window
from wedlm_core.engine.forward.bounds import Refills, next_rows
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.forward.logits import Chooser, Picks
from wedlm_core.engine.forward.outcome import fetch, join
from wedlm_core.engine.forward.pack import Batch, Group, gather_groups, pack
from wedlm_core.engine.forward.profile import NO_PROFILE, StepProfile
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome
from wedlm_core.kv.pool import KVPool
from wedlm_core.model import Decoder
from wedlm_core.model.products import RowPadding, plain_padding

if TYPE_CHECKING:
    from wedlm_core.engine.forward.async_runner import AheadRunner
    from wedlm_core.engine.forward.pack_cpu import CpuStep
    from wedlm_core.model.decoder_cpu import DecoderCpu

__all__ = ["Runner", "StepDetail"]


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """Everything a trace needs of one decoding group: the window before the forward, its layout, its choices."""

    window: Window
    layout: RowLayout
    choices: RowChoices
    commit: Commit


@dataclass(frozen=True, kw_only=True)
class Advance:
    """One group after a forward: what happened, and the rows of its next one (int64 ``[S]``)."""

    detail: StepDetail
    next_rows_S: Tensor


class Runner:
    """Model, KV pool, windows and parameters of one engine, on one device.

    Args:
        model: the decoder, in evaluation mode, its rotary tables long enough for every window.
        pool: KV tensors.
        backend: attention.
        config: engine configuration.
        mask_token_id: token fed for a mask.
        vocab_limit: ids from here on are vocabulary padding.
        max_positions: positions a sequence can reach, windows included.
        decodings: the decoding implementations, numbered as in ``SlotTable.group``.

    Attributes:
        profile: stopwatch of the phases; does nothing unless replaced.
        choose: logits and choices of picked rows.
        ahead: runs forwards that the host does not wait for; None where the engine does not overlap.
    """

    def __init__(
        self,
        *,
        model: Decoder,
        pool: KVPool,
        backend: AttentionBackend,
        config: EngineConfig,
        mask_token_id: int,
        vocab_limit: int,
        max_positions: int,
        decodings: Seq[Decoding],
    ) -> None:
        self.model, self.pool, self.backend, self.config = model, pool, backend, config
        self.mask_token_id, self.vocab_limit = mask_token_id, vocab_limit
        self.decodings = list(decodings)
        self.device = model.embed.weight.device
        self._compiled: DecoderCpu | None = None
        if backend.name == "compiled":
            from wedlm_core.model.decoder_cpu import DecoderCpu

            self._compiled = DecoderCpu(model)
        self.padding = self._compiled.padding if self._compiled is not None else _padding(self.device)
        self.choose = Chooser(
            self.device,
            head=model.lm_head if self._compiled is None else self._compiled.head,
            chunk_rows=config.logits_rows(model.config.vocab_size),
            padding=self.padding,
            mask_token_id=mask_token_id,
            vocab_limit=vocab_limit,
            compiled=self._compiled is not None,
        )
        self._verified_G = np.array([isinstance(d, VerifiedDecoding) for d in self.decodings])
        self._clipped_G = self._verified_G | [isinstance(d, StreamingDecoding) and d.switches.clip for d in decodings]
        self.state = DeviceState(config, self.decodings, mask_token_id, max_positions, self.device)
        self.ahead: AheadRunner | None = None
        self.profile: StepProfile = NO_PROFILE

    @property
    def state(self) -> DeviceState:
        """What the device keeps of each slot; may be replaced as a whole."""
        return self._state

    @state.setter
    def state(self, state: DeviceState) -> None:
        self._state = state
        self._cpu_step: CpuStep | None = None
        if self._compiled is not None:
            from wedlm_core.engine.forward.pack_cpu import CpuStep

            self._cpu_step = CpuStep(state, self._verified_G, self.pool.page_size)

    @torch.inference_mode()
    def forward(self, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """Run one packed forward, advance every decoding sequence of it and wait for the outcome.

        Args:
            plan: decoding sequences first, grouped; its counts are exact.
            table: slots; groups and windows are read.

        Returns:
            The outcome of the D decoding sequences in plan order, and a detail per group (for traces).
        """
        if self.ahead is not None:
            return self.ahead.launch_exactly(plan, table).wait(), []
        step = self._cpu_step
        if step is not None and not self.config.trace and step.takes(plan, table):
            return self._forward_cpu(step, plan), []
        slots_S = torch.from_numpy(plan.slots_S).to(self.device)
        context_S = torch.from_numpy(plan.cached_S + plan.prefill_S).to(self.device)
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        rows_D = next_rows(self.refills(table, slots_D), plan.decode_S[: len(slots_D)], table.left(slots_D))
        groups = gather_groups(plan, table, self.state, slots_S, context_S, rows_D)
        batch = pack(plan, groups, self.state, self.pool.page_size)
        self.profile.lap("pack")
        hidden_TD = self.run_model(batch.id_T, batch.position_T, batch.kv_slot_T, batch.rows)
        self.profile.lap("model")
        if not groups:
            return join([]), []
        chosen_F = self.choose(hidden_TD, self._picks(groups, batch), self.state, plan.slots_S)
        self.profile.lap("choose")
        parts, details = [], []
        for advance in self.advance_groups(groups, chosen_F):
            parts.append(fetch(advance.detail.commit, advance.next_rows_S))
            self.profile.lap("fetch")
            details.append(advance.detail)
        return join(parts), details

    def _forward_cpu(self, step: CpuStep, plan: ForwardPlan) -> StepOutcome:
        """:meth:`forward` with compiled kernels around model and choices; what they write is on the host at once."""
        packed = step.pack(plan)
        self.profile.lap("pack")
        hidden_TD = self.run_model(packed.id_T, packed.position_T, packed.kv_slot_T, packed.rows)
        self.profile.lap("model")
        if not packed.picks.row_R.shape[0]:
            return join([])
        chosen_R = self.choose.by_row(hidden_TD, packed.picks, self.state, plan.slots_S)
        self.profile.lap("choose")
        outcome = step.advance(plan, chosen_R)
        self.profile.lap("advance")
        return outcome

    def refills(self, table: SlotTable, slots_D: IntArray) -> Refills:
        """How windows are refilled at the end of a forward that is about to run."""
        return Refills.of(table, slots_D, self._verified_G, self._clipped_G)

    def run_model(self, id_T: Tensor, position_T: Tensor, kv_slot_T: Tensor, rows: PackedRows) -> Tensor:
        """The decoder over packed rows; returns hidden states ``[T', D]``, T' padded (:class:`RowPadding`)."""
        plan = self.backend.plan(rows, self.pool, self.model.config.num_attention_heads)
        if self._compiled is not None:
            assert isinstance(plan, PagedCpuPlan)
            return self._compiled(id_T, position_T, kv_slot_T, self.pool, plan)
        total = id_T.shape[0]
        padding = (0, self.padding(total) - total)
        pool_rows = self.pool.flat_index(kv_slot_T)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.pool.write(layer, pool_rows, k[:total], v[:total])
            return plan.attend(layer, q)

        return self.model(F.pad(id_T, padding), F.pad(position_T, padding), attend)

    def run_device_rows(self, id_T: Tensor, position_T: Tensor, kv_slot_T: Tensor, rows: DeviceRows) -> Tensor:
        """:meth:`run_model` without host work, for backends that plan on the device; padding rows have slot -1."""
        backend = cast(DeviceAttentionBackend, self.backend)
        plan = backend.plan_device(rows, self.pool, self.model.config.num_attention_heads)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.pool.write_entries(layer, kv_slot_T, k, v)
            return plan.attend(layer, q)

        return self.model(id_T, position_T, attend)

    def _picks(self, groups: list[Group], batch: Batch) -> Picks:
        """The rows of the forward that need logits."""
        wanted = [g.decoding.wanted(g.window, g.layout) for g in groups]
        next_F = join_tensors([w.next_SR.flatten() for w in wanted])
        self_F = join_tensors([w.self_SR.flatten() for w in wanted])
        picked_R = torch.nonzero((next_F | self_F)[batch.flat_D]).squeeze(1)
        flat_R, row_R = batch.flat_D[picked_R], batch.row_D[picked_R]
        return Picks(
            row_R=row_R,
            flat_R=flat_R,
            slot_R=batch.slot_D[picked_R],
            position_R=batch.position_T[row_R] + next_F[flat_R],
            places=next_F.shape[0],
        )

    def advance_groups(self, groups: list[Group], chosen_F: Choice) -> Iterator[Advance]:
        """Commit and refill each group's windows, and remember the tokens."""
        for group in groups:
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


def _padding(device: torch.device) -> RowPadding:
    """For ``torch.mm``: so that rows are bitwise alike in any number on a CPU, as tiles are padded anyway on a GPU."""
    return plain_padding() if device.type == "cpu" else RowPadding(few=8, many=8)


def _copy(window: Window) -> Window:
    return Window(**{f.name: getattr(window, f.name).clone() for f in fields(window)})
