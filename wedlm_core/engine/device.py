"""What the device keeps of each slot: windows, parameters, tokens and page tables."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.window import WindowParams, empty_windows
from wedlm_core.engine.slots import IntArray, SlotTable
from wedlm_core.types import Request

__all__ = ["DeviceState"]

_STOP_IDS = 16  # stop tokens of a sequence that the device knows (to clip windows); the host tests all


class DeviceState:
    """Tensors by slot, and the few host arrays that say what a group of slots needs.

    Attributes:
        windows: the decoding state.
        params: what the requests fix.
        tokens_SL: int64, prompt and committed tokens by position, from which prefill rows are read.
        pages_SP: int64 page tables.
        sampled: host bool ``[S, 3]``, whether a slot uses temperature, top-k, top-p.
        suppresses: host bool ``[S]``, slots that never choose the mask id; ``suppress_S`` on the device.
    """

    def __init__(
        self,
        config: EngineConfig,
        decodings: Seq[Decoding],
        mask_token_id: int,
        max_positions: int,
        device: torch.device,
    ) -> None:
        self.device, self.decodings, self.mask_token_id = device, decodings, mask_token_id
        slots = config.max_num_seqs
        self.windows = empty_windows(slots, 2 * config.max_window, device)
        self.tokens_SL = torch.zeros(slots, max_positions, dtype=torch.int64, device=device)
        self.pages_SP = torch.zeros(slots, -(-max_positions // config.page_size), dtype=torch.int64)
        self._windows_3S = torch.zeros(3, slots, dtype=torch.int64, device=device)
        self.sampled = np.zeros((slots, 3), dtype=np.bool_)
        self.suppresses = np.zeros(slots, dtype=np.bool_)
        self.suppress_S = torch.zeros(slots, dtype=torch.bool, device=device)
        self.params = WindowParams(
            window_S=self._windows_3S[0],
            keep_intact_S=self._windows_3S[1],
            keep_broken_S=self._windows_3S[2],
            threshold_S=torch.zeros(slots, device=device),
            penalty_S=torch.zeros(slots, device=device),
            temperature_S=torch.zeros(slots, device=device),
            top_k_S=torch.zeros(slots, dtype=torch.int64, device=device),
            top_p_S=torch.ones(slots, device=device),
            seed_S=torch.zeros(slots, dtype=torch.int64, device=device),
            limit_S=torch.zeros(slots, dtype=torch.int64, device=device),
            stop_SK=torch.full((slots, _STOP_IDS), -1, dtype=torch.int64, device=device),
        )

    def set_pages(self, slot: int, pages: Seq[int]) -> None:
        """Write a slot's page table (called when its pages change)."""
        self.pages_SP[slot, : len(pages)] = torch.as_tensor(pages, dtype=torch.int64)

    def set_windows(self, table: SlotTable) -> None:
        """Copy the windows of all slots to the device; they take effect when windows are refilled."""
        self._windows_3S.copy_(torch.from_numpy(np.stack([table.masks, table.keep_intact, table.keep_broken])))

    def setup(self, requests: Seq[Request], slots: Seq[int], groups: Seq[int], stop_ids: Seq[Seq[int]]) -> IntArray:
        """Give new sequences their slots: parameters, prompt and first window (:meth:`set_windows` goes before).

        Returns:
            int64 per request: decode rows of its first decode forward.
        """
        self._set_params(requests, slots, stop_ids)
        for request, slot in zip(requests, slots, strict=True):
            prompt = torch.tensor(request.prompt_token_ids, dtype=torch.int64, device=self.device)
            self.tokens_SL[slot, : len(prompt)] = prompt
        rows = np.zeros(len(slots), dtype=np.int64)
        for number in set(groups):
            decoding = self.decodings[number]
            member = [i for i, g in enumerate(groups) if g == number]
            slots_S = torch.tensor([slots[i] for i in member], device=self.device)
            fresh = empty_windows(len(member), self.windows.token_SL.shape[1], self.device)
            if decoding.head:
                last = torch.tensor([len(requests[i].prompt_token_ids) - 1 for i in member], device=self.device)
                fresh.head_S = self.tokens_SL[slots_S, last]
            decoding.refill(fresh, self.params.gather(slots_S), self.mask_token_id)
            self.windows.scatter(slots_S, fresh)
            self.suppress_S[slots_S] = decoding.suppresses
            self.suppresses[[slots[i] for i in member]] = decoding.suppresses
            rows[member] = (fresh.length_S + int(decoding.head)).cpu().numpy()
        return rows

    def _set_params(self, requests: Seq[Request], slots: Seq[int], stop_ids: Seq[Seq[int]]) -> None:
        """Write the parameters of new sequences, one column of the table after the other."""
        given = [request.params for request in requests]
        slots_S = torch.tensor(slots, dtype=torch.int64, device=self.device)
        thresholds = [-math.inf if p.entropy_threshold is None else p.entropy_threshold for p in given]
        known = [[*ids[:_STOP_IDS], *[-1] * (_STOP_IDS - len(ids))] for ids in stop_ids]
        columns: dict[str, list[Any]] = {
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
        self.sampled[slots] = [(p.temperature > 0, p.top_k > 0, p.top_p < 1) for p in given]
