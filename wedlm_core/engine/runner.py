"""Device state and the one packed forward: rows in, commits out.

Per step: lay out the windows of every decoding sequence, pack their rows behind prefill chunks, run the
decoder once, choose tokens on the rows that need logits, advance the windows, and bring one small result
to the host. Nothing here loops over sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import AttentionBackend, PackedRows
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.sampling import SamplingRows, choose
from wedlm_core.decoding.strategies import Commit, Decoding, RowChoices
from wedlm_core.decoding.window import RowLayout, Window, WindowParams, empty_windows, lay_out
from wedlm_core.engine.scheduler import ForwardPlan
from wedlm_core.engine.slots import IntArray, StepOutcome
from wedlm_core.kv.pool import KVPool
from wedlm_core.model import Decoder
from wedlm_core.types import Request

__all__ = ["Runner", "StepDetail"]

_STOP_IDS = 16  # stop tokens of a sequence that the device knows (to clip windows); the host tests all


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """Everything a trace needs of one decoding group: the window before the forward, its layout, its choices."""

    window: Window
    layout: RowLayout
    choices: RowChoices
    commit: Commit


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Sequences ``start .. stop`` of a plan, which share a decoding; ``base`` is their first flat decode row."""

    decoding: Decoding
    start: int
    stop: int
    base: int
    slots_S: Tensor
    params: WindowParams
    window: Window
    layout: RowLayout


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
        slots, width = config.max_num_seqs, 2 * config.max_window
        self.windows = empty_windows(slots, width, self.device)
        self._tokens_SL = torch.zeros(slots, max_positions, dtype=torch.int64, device=self.device)
        self._pages_SP = torch.zeros(slots, -(-max_positions // config.page_size), dtype=torch.int64)
        self._window_sizes = np.zeros(slots, dtype=np.int64)
        self._sampled = np.zeros((slots, 3), dtype=np.bool_)  # temperature, top-k, top-p in use
        self._suppresses = np.zeros(slots, dtype=np.bool_)
        self._suppress_S = torch.zeros(slots, dtype=torch.bool, device=self.device)
        self.params = WindowParams(
            window_S=torch.zeros(slots, dtype=torch.int64, device=self.device),
            threshold_S=torch.zeros(slots, device=self.device),
            penalty_S=torch.zeros(slots, device=self.device),
            temperature_S=torch.zeros(slots, device=self.device),
            top_k_S=torch.zeros(slots, dtype=torch.int64, device=self.device),
            top_p_S=torch.ones(slots, device=self.device),
            seed_S=torch.zeros(slots, dtype=torch.int64, device=self.device),
            limit_S=torch.zeros(slots, dtype=torch.int64, device=self.device),
            stop_SK=torch.full((slots, _STOP_IDS), -1, dtype=torch.int64, device=self.device),
        )
        # Row counts are padded so that every GEMM, however it is split over threads, keeps to the kernel
        # whose rows are bitwise alike for any count (4 rows a thread; see attention.tiled).
        self.row_quantum = max(16, 4 * torch.get_num_threads())

    @property
    def num_pages_per_slot(self) -> int:
        """Pages a slot's page table has room for."""
        return self._pages_SP.shape[1]

    def set_pages(self, slot: int, pages: Seq[int]) -> None:
        """Write a slot's page table (called when its pages change)."""
        self._pages_SP[slot, : len(pages)] = torch.as_tensor(pages, dtype=torch.int64)

    def setup(self, requests: Seq[Request], slots: Seq[int], groups: Seq[int], stop_ids: Seq[Seq[int]]) -> IntArray:
        """Give new sequences their slots: parameters, prompt and first window.

        Returns:
            int64 per request: decode rows of its first decode forward.
        """
        self._set_params(requests, slots, stop_ids)
        for request, slot in zip(requests, slots, strict=True):
            prompt = torch.tensor(request.prompt_token_ids, dtype=torch.int64, device=self.device)
            self._tokens_SL[slot, : len(prompt)] = prompt
        rows = np.zeros(len(slots), dtype=np.int64)
        for number in set(groups):
            decoding = self.decodings[number]
            member = [i for i, g in enumerate(groups) if g == number]
            slots_S = torch.tensor([slots[i] for i in member], device=self.device)
            fresh = empty_windows(len(member), self.windows.token_SL.shape[1], self.device)
            if decoding.head:
                last = torch.tensor([len(requests[i].prompt_token_ids) - 1 for i in member], device=self.device)
                fresh.head_S = self._tokens_SL[slots_S, last]
            decoding.refill(fresh, self.params.gather(slots_S), self.mask_token_id)
            self.windows.scatter(slots_S, fresh)
            self._suppress_S[slots_S] = decoding.suppresses
            self._suppresses[[slots[i] for i in member]] = decoding.suppresses
            rows[member] = (fresh.length_S + int(decoding.head)).cpu().numpy()
        return rows

    def _set_params(self, requests: Seq[Request], slots: Seq[int], stop_ids: Seq[Seq[int]]) -> None:
        """Write the parameters of new sequences, one column of the table after the other."""
        given = [request.params for request in requests]
        slots_S = torch.tensor(slots, dtype=torch.int64, device=self.device)
        thresholds = [-math.inf if p.entropy_threshold is None else p.entropy_threshold for p in given]
        known = [[*ids[:_STOP_IDS], *[-1] * (_STOP_IDS - len(ids))] for ids in stop_ids]
        columns: dict[str, list[Any]] = {
            "window_S": [p.window for p in given],
            "threshold_S": thresholds,
            "penalty_S": [p.position_penalty for p in given],
            "temperature_S": [p.temperature for p in given],
            "top_k_S": [p.top_k for p in given],
            "top_p_S": [p.top_p for p in given],
            "seed_S": [request.seed for request in requests],
            "limit_S": [p.max_tokens for p in given],
            "stop_SK": known,
        }
        for name, values in columns.items():
            column = getattr(self.params, name)
            column.index_copy_(0, slots_S, torch.tensor(values, dtype=column.dtype, device=self.device))
        self._window_sizes[slots] = columns["window_S"]
        self._sampled[slots] = [(p.temperature > 0, p.top_k > 0, p.top_p < 1) for p in given]

    @torch.inference_mode()
    def forward(self, plan: ForwardPlan, groups_S: IntArray) -> tuple[StepOutcome, list[StepDetail]]:
        """Run one packed forward and advance every decoding sequence of it.

        Args:
            plan: decoding sequences first, grouped.
            groups_S: group number of each sequence.

        Returns:
            The outcome of the D decoding sequences in plan order, and a detail per group (for traces).
        """
        counts_S = plan.prefill_S + plan.decode_S
        starts_S = np.cumsum(counts_S) - counts_S
        seq_T = np.repeat(np.arange(len(counts_S)), counts_S)
        within_T = np.arange(len(seq_T)) - starts_S[seq_T]
        index_T = plan.cached_S[seq_T] + within_T  # KV index; also the logical position of prefill rows
        slots_S = torch.from_numpy(plan.slots_S)
        pages_SP = self._pages_SP[slots_S][:, : int((plan.cached_S + counts_S).max() - 1) // self.pool.page_size + 1]

        groups = self._groups(plan, groups_S)
        ids_T = self._tokens_SL[slots_S[seq_T], torch.from_numpy(index_T)]
        positions_T = torch.from_numpy(index_T.copy())
        decode_rows = np.flatnonzero(within_T >= plan.prefill_S[seq_T])
        flat = self._flat_rows(groups, plan, seq_T[decode_rows], within_T[decode_rows])
        rows_D, flat_D = torch.from_numpy(decode_rows), torch.from_numpy(flat)
        if groups:
            context_D = torch.from_numpy((plan.cached_S + plan.prefill_S)[seq_T[decode_rows]])
            ids_T[rows_D] = torch.cat([g.layout.id_SR.flatten() for g in groups])[flat_D]
            positions_T[rows_D] = context_D + torch.cat([g.layout.offset_SR.flatten() for g in groups])[flat_D]

        hidden_TD = self._run_model(
            ids_T,
            positions_T,
            PackedRows(counts_S=counts_S, cached_S=plan.cached_S, starts_S=starts_S, pages_SP=pages_SP),
        )
        return self._advance(plan, groups, hidden_TD, positions_T, rows_D, flat_D, seq_T[decode_rows])

    def _groups(self, plan: ForwardPlan, groups_S: IntArray) -> list[_Group]:
        """Gather the windows of each run of sequences that share a decoding."""
        decoding_count = int(np.count_nonzero(plan.decode_S))
        numbers = groups_S[:decoding_count]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), decoding_count] if decoding_count else []
        groups, base = [], 0
        for start, stop in pairwise(edges):
            slots = plan.slots_S[start:stop]
            width = max(1, 2 * int(self._window_sizes[slots].max()))
            slots_S = torch.from_numpy(slots).to(self.device)
            window = self.windows.gather(slots_S, width)
            groups.append(
                _Group(
                    decoding=self.decodings[int(numbers[start])],
                    start=start,
                    stop=stop,
                    base=base,
                    slots_S=slots_S,
                    params=self.params.gather(slots_S),
                    window=window,
                    layout=lay_out(window),
                )
            )
            base += (stop - start) * (width + 1)
        return groups

    @staticmethod
    def _flat_rows(groups: list[_Group], plan: ForwardPlan, seq_D: IntArray, within_D: IntArray) -> IntArray:
        """Where each decode row stands in the groups' flattened ``[S, R]`` layouts, one after the other."""
        count = len(plan.slots_S)
        first_S = np.zeros(count, dtype=np.int64)
        for group in groups:
            width = group.layout.id_SR.shape[1]
            first_S[group.start : group.stop] = group.base + np.arange(group.stop - group.start) * width
        return first_S[seq_D] + within_D - plan.prefill_S[seq_D]

    def _run_model(self, ids_T: Tensor, positions_T: Tensor, rows: PackedRows) -> Tensor:
        """The decoder over packed rows; returns hidden states ``[T', D]``, T' padded to the row quantum."""
        total = len(ids_T)
        padding = -total % self.row_quantum
        ids_T = torch.nn.functional.pad(ids_T, (0, padding))
        positions_T = torch.nn.functional.pad(positions_T, (0, padding))
        index_T = positions_of_rows(rows)
        size = self.pool.page_size
        seq_T = torch.from_numpy(np.repeat(np.arange(len(rows.counts_S)), rows.counts_S))
        slots_T = rows.pages_SP[seq_T, index_T // size] * size + index_T % size
        pool_rows = self.pool.rows_of(slots_T)
        attention = self.backend.plan(rows, self.pool, self.model.config.num_attention_heads)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.pool.write(layer, pool_rows, k[:total], v[:total])
            return attention.attend(layer, q)

        return self.model(ids_T, positions_T, attend)

    def _advance(
        self,
        plan: ForwardPlan,
        groups: list[_Group],
        hidden_TD: Tensor,
        positions_T: Tensor,
        rows_D: Tensor,
        flat_D: Tensor,
        seq_D: IntArray,
    ) -> tuple[StepOutcome, list[StepDetail]]:
        """Choose tokens on wanted rows, advance each group, write committed tokens, fetch the outcome."""
        if not groups:
            return _join([]), []
        wanted = [g.decoding.wanted(g.window, g.layout) for g in groups]
        next_F = torch.cat([w.next_SR.flatten() for w in wanted])
        self_F = torch.cat([w.self_SR.flatten() for w in wanted])
        picked = torch.nonzero((next_F | self_F)[flat_D]).squeeze(1)
        flat_R, row_R = flat_D[picked], rows_D[picked]
        target_R = positions_T[row_R] + next_F[flat_R]
        slot_R = torch.from_numpy(plan.slots_S[seq_D])[picked]
        token_F, entropy_F, logprob_F = self._choose(hidden_TD, row_R, slot_R, target_R, flat_R, len(next_F), plan)
        parts, details = [], []
        for group in groups:
            shape = group.layout.id_SR.shape
            span = slice(group.base, group.base + shape.numel())
            choices = RowChoices(
                token_SR=token_F[span].view(shape),
                entropy_SR=entropy_F[span].view(shape),
                logprob_SR=logprob_F[span].view(shape),
            )
            before = _copy(group.window) if self.config.trace else group.window
            commit = group.decoding.advance(group.window, group.params, group.layout, choices)
            group.decoding.refill(group.window, group.params, self.mask_token_id)
            self.windows.scatter(group.slots_S, group.window)
            self._remember(plan, group, commit)
            parts.append(_fetch(commit, group.window.length_S + group.layout.has_head_S))
            if self.config.trace:
                details.append(StepDetail(window=before, layout=group.layout, choices=choices, commit=commit))
        return _join(parts), details

    def _choose(
        self,
        hidden_TD: Tensor,
        row_R: Tensor,
        slot_R: Tensor,
        target_R: Tensor,
        flat_R: Tensor,
        size: int,
        plan: ForwardPlan,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and choices of the wanted rows in bounded chunks, scattered to the flat layout ``[F]``."""
        token_F = torch.zeros(size, dtype=torch.int64, device=self.device)
        entropy_F = torch.zeros(size, device=self.device)
        logprob_F = torch.zeros(size, device=self.device)
        sampled, top_k, top_p = np.any(self._sampled[plan.slots_S], axis=0).tolist()
        suppressing = bool(self._suppresses[plan.slots_S].any())
        chunk = self.config.logits_chunk_rows
        for start in range(0, len(row_R), chunk):
            part = slice(start, start + chunk)
            rows, slots = row_R[part], slot_R[part]
            padded = torch.nn.functional.pad(rows, (0, -len(rows) % self.row_quantum))
            logits_RV = self.model.logits(hidden_TD.index_select(0, padded))[: len(rows)]
            choice = choose(
                logits_RV,
                SamplingRows(
                    temperature_R=self.params.temperature_S[slots],
                    top_k_R=self.params.top_k_S[slots],
                    top_p_R=self.params.top_p_S[slots],
                    seed_R=self.params.seed_S[slots],
                    position_R=target_R[part],
                    suppress_R=self._suppress_S[slots],
                    sampled=sampled,
                    filtered_k=top_k,
                    filtered_p=top_p,
                    suppressing=suppressing,
                ),
                mask_token_id=self.mask_token_id,
                vocab_limit=self.vocab_limit,
            )
            token_F[flat_R[part]] = choice.token_R
            entropy_F[flat_R[part]] = choice.entropy_R
            logprob_F[flat_R[part]] = choice.logprob_R
        return token_F, entropy_F, logprob_F

    def _remember(self, plan: ForwardPlan, group: _Group, commit: Commit) -> None:
        """Append committed tokens to the device's token buffer, where a recompute would find them."""
        span = slice(group.start, group.stop)
        first_S = torch.from_numpy((plan.cached_S + plan.prefill_S)[span]) + group.layout.has_head_S
        place_C = torch.arange(commit.token_SC.shape[1], device=self.device)
        valid_SC = place_C < commit.count_S[:, None]
        position_SC = (first_S[:, None] + place_C).clamp(max=self._tokens_SL.shape[1] - 1)
        slots_SC = group.slots_S[:, None].expand_as(position_SC)
        self._tokens_SL[slots_SC[valid_SC], position_SC[valid_SC]] = commit.token_SC[valid_SC]


def positions_of_rows(rows: PackedRows) -> Tensor:
    """int64 ``[T]``: the KV index of each packed row."""
    seq_T = np.repeat(np.arange(len(rows.counts_S)), rows.counts_S)
    within_T = np.arange(len(seq_T)) - rows.starts_S[seq_T]
    return torch.from_numpy(rows.cached_S[seq_T] + within_T)


def _copy(window: Window) -> Window:
    return Window(**{f.name: getattr(window, f.name).clone() for f in fields(window)})


def _fetch(commit: Commit, next_rows_S: Tensor) -> StepOutcome:
    """Bring one group's commit to the host: integers in one copy, floats in another."""
    counts_S5 = torch.stack([commit.count_S, next_rows_S, commit.context_S, commit.drafts_S, commit.agreed_S], dim=1)
    whole = torch.cat([counts_S5, commit.token_SC, commit.early_SC.to(torch.int64)], dim=1).cpu().numpy()
    real = torch.cat([commit.entropy_SC, commit.logprob_SC], dim=1).cpu().numpy()
    places = commit.token_SC.shape[1]
    return StepOutcome(
        count_D=whole[:, 0],
        next_rows_D=whole[:, 1],
        context_D=whole[:, 2],
        drafts_D=whole[:, 3],
        agreed_D=whole[:, 4],
        token_DC=whole[:, 5 : 5 + places],
        early_DC=whole[:, 5 + places :] != 0,
        entropy_DC=real[:, :places],
        logprob_DC=real[:, places:],
    )


def _join(parts: list[StepOutcome]) -> StepOutcome:
    """Outcomes of several groups as one, places padded to the widest."""
    if len(parts) == 1:
        return parts[0]
    places = max((p.token_DC.shape[1] for p in parts), default=1)
    nothing = np.zeros((0, places), dtype=np.int64)

    def joined(name: str) -> np.ndarray:
        if name.endswith("_D"):
            return np.concatenate([nothing[:, 0], *(getattr(p, name) for p in parts)])
        matrices = [getattr(p, name) for p in parts]
        return np.concatenate([nothing, *(np.pad(m, ((0, 0), (0, places - m.shape[1]))) for m in matrices)])

    return StepOutcome(**{f.name: joined(f.name) for f in fields(StepOutcome)})
