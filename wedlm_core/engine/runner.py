"""The one packed forward: rows in, commits out.

Per step: lay out the windows of every decoding sequence, pack their rows behind prefill chunks, run the
decoder once, choose tokens on the rows that need logits, advance the windows, and bring one small result
to the host. Nothing here loops over sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention import AttentionBackend
from wedlm_core.attention.compiled import CompiledPlan
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.compiled import choose_compiled
from wedlm_core.decoding.sampling import Choice, SamplingRows, choose
from wedlm_core.decoding.strategies import Commit, Decoding, RowChoices
from wedlm_core.decoding.window import RowLayout, Window
from wedlm_core.engine.batch import Batch, Group, gather_groups, pack
from wedlm_core.engine.device import DeviceState
from wedlm_core.engine.outcome import fetch, join
from wedlm_core.engine.profile import NO_PROFILE, StepProfile
from wedlm_core.engine.scheduler import ForwardPlan
from wedlm_core.engine.slots import SlotTable, StepOutcome
from wedlm_core.kv.pool import KVPool
from wedlm_core.model import Decoder

if TYPE_CHECKING:
    from wedlm_core.model.compiled import CompiledDecoder

__all__ = ["Runner", "StepDetail"]


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """Everything a trace needs of one decoding group: the window before the forward, its layout, its choices."""

    window: Window
    layout: RowLayout
    choices: RowChoices
    commit: Commit


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
        self.state = DeviceState(config, self.decodings, mask_token_id, max_positions, self.device)
        # Row counts are padded so that every GEMM, however it is split over threads, keeps to the kernel
        # whose rows are bitwise alike for any count (4 rows a thread; see attention.tiled).
        self._compiled: CompiledDecoder | None = None
        if backend.name == "compiled":
            from wedlm_core.model.compiled import CompiledDecoder

            self._compiled = CompiledDecoder(model)
        self.row_quantum = max(16, 4 * torch.get_num_threads())
        self.profile: StepProfile = NO_PROFILE

    @torch.inference_mode()
    def forward(self, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """Run one packed forward and advance every decoding sequence of it.

        Args:
            plan: decoding sequences first, grouped.
            table: slots; groups and windows are read.

        Returns:
            The outcome of the D decoding sequences in plan order, and a detail per group (for traces).
        """
        groups = gather_groups(plan, table, self.state)
        batch = pack(plan, groups, self.state, self.pool.page_size)
        self.profile.lap("pack")
        hidden_TD = self._run_model(batch)
        self.profile.lap("model")
        return self._advance(plan, groups, batch, hidden_TD) if groups else (join([]), [])

    def _run_model(self, batch: Batch) -> Tensor:
        """The decoder over packed rows; returns hidden states ``[T', D]``, T' padded to the row quantum."""
        plan = self.backend.plan(batch.rows, self.pool, self.model.config.num_attention_heads)
        if self._compiled is not None:
            assert isinstance(plan, CompiledPlan)
            return self._compiled(batch.id_T, batch.position_T, batch.kv_slot_T, self.pool, plan, self.row_quantum)
        total = batch.id_T.shape[0]
        padding = (0, -total % self.row_quantum)
        pool_rows = self.pool.rows_of(batch.kv_slot_T)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.pool.write(layer, pool_rows, k[:total], v[:total])
            return plan.attend(layer, q)

        return self.model(F.pad(batch.id_T, padding), F.pad(batch.position_T, padding), attend)

    def _advance(
        self, plan: ForwardPlan, groups: list[Group], batch: Batch, hidden_TD: Tensor
    ) -> tuple[StepOutcome, list[StepDetail]]:
        """Choose tokens on wanted rows, advance each group, remember committed tokens, fetch the outcome."""
        chosen_F = self._choose(plan, groups, batch, hidden_TD)
        self.profile.lap("choose")
        parts, details = [], []
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
            self._remember(batch, group, commit)
            self.profile.lap("advance")
            parts.append(fetch(commit, group.window.length_S + group.layout.has_head_S))
            self.profile.lap("fetch")
            if self.config.trace:
                details.append(StepDetail(window=before, layout=group.layout, choices=choices, commit=commit))
        return join(parts), details

    def _choose(self, plan: ForwardPlan, groups: list[Group], batch: Batch, hidden_TD: Tensor) -> Choice:
        """Logits and choices of the wanted rows, in bounded chunks, spread over the flat layout ``[F]``."""
        wanted = [g.decoding.wanted(g.window, g.layout) for g in groups]
        next_F = torch.cat([w.next_SR.flatten() for w in wanted])
        self_F = torch.cat([w.self_SR.flatten() for w in wanted])
        picked_R = torch.nonzero((next_F | self_F)[batch.flat_D]).squeeze(1)
        flat_R, row_R, slot_R = batch.flat_D[picked_R], batch.row_D[picked_R], batch.slot_D[picked_R]
        target_R = batch.position_T[row_R] + next_F[flat_R]
        token_F = torch.zeros(next_F.shape, dtype=torch.int64, device=self.device)
        entropy_F = torch.zeros(next_F.shape, device=self.device)
        logprob_F = torch.zeros(next_F.shape, device=self.device)
        sampled, top_k, top_p = np.any(self.state.sampled[plan.slots_S], axis=0).tolist()
        suppressing = bool(self.state.suppresses[plan.slots_S].any())
        params, chunk = self.state.params, self.config.logits_chunk_rows
        for start in range(0, row_R.shape[0], chunk):
            part = slice(start, start + chunk)
            rows, slots = row_R[part], slot_R[part]
            padded = F.pad(rows, (0, -rows.shape[0] % self.row_quantum))
            logits_RV = self.model.logits(hidden_TD.index_select(0, padded))[: rows.shape[0]]
            inputs = SamplingRows(
                temperature_R=params.temperature_S[slots],
                top_k_R=params.top_k_S[slots],
                top_p_R=params.top_p_S[slots],
                seed_R=params.seed_S[slots],
                position_R=target_R[part],
                suppress_R=self.state.suppress_S[slots],
                sampled=sampled,
                filtered_k=top_k,
                filtered_p=top_p,
                suppressing=suppressing,
            )
            limits = {"mask_token_id": self.mask_token_id, "vocab_limit": self.vocab_limit}
            if self._compiled is not None:
                filtered_R = self.state.sampled[slots.numpy()][:, 1:].any(axis=1)
                choice = choose_compiled(logits_RV, inputs, filtered_R, **limits)
            else:
                choice = choose(logits_RV, inputs, **limits)
            token_F[flat_R[part]] = choice.token_R
            entropy_F[flat_R[part]] = choice.entropy_R
            logprob_F[flat_R[part]] = choice.logprob_R
        return Choice(token_R=token_F, entropy_R=entropy_F, logprob_R=logprob_F)

    def _remember(self, batch: Batch, group: Group, commit: Commit) -> None:
        """Append committed tokens to the device's token buffer, where a recompute would find them."""
        context_S = torch.from_numpy(batch.context_S[group.start : group.stop]).to(self.device)
        place_C = torch.arange(commit.token_SC.shape[1], device=self.device)
        valid_SC = place_C < commit.count_S[:, None]
        position_SC = (context_S + group.layout.has_head_S)[:, None] + place_C
        # Commits may run past the output's end, never past the windows' reach, which the buffer has room for.
        slots_SC = group.slots_S[:, None].expand_as(position_SC)
        self.state.tokens_SL[slots_SC[valid_SC], position_SC[valid_SC]] = commit.token_SC[valid_SC]


def _copy(window: Window) -> Window:
    return Window(**{f.name: getattr(window, f.name).clone() for f in fields(window)})
