"""Backend ``sdpa``: torch's scaled_dot_product_attention over sequences padded to a rectangle.

This is the usual way to run mixed lengths in plain PyTorch, and the baseline of the tiled backend. It is fast if the
lengths are similar and wasteful if not. It is not batch invariant: its blocking depends on the padded lengths.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention.attention_protocol import PackedRows
from wedlm_core.kv.pool import KVPool


class _SdpaPlan:
    def __init__(self, rows: PackedRows, pool: KVPool) -> None:
        self.pool, device = pool, rows.pages_SP.device
        sequences, queries = len(rows.counts_S), int(rows.counts_S.max())
        keys = int((rows.cached_S + rows.counts_S).max())
        counts_S1 = torch.from_numpy(rows.counts_S).to(device)[:, None]
        cached_S1 = torch.from_numpy(rows.cached_S).to(device)[:, None]
        starts_S1 = torch.from_numpy(rows.starts_S).to(device)[:, None]
        row_Q, key_L = torch.arange(queries, device=device), torch.arange(keys, device=device)
        self.shape = (sequences, keys)
        self.source_SQ = starts_S1 + torch.minimum(row_Q, counts_S1 - 1)
        self.real_SQ = row_Q < counts_S1
        entry_SL = rows.pages_SP[:, key_L // pool.page_size] * pool.page_size + key_L % pool.page_size
        self.kv_index_HSL = pool.flat_index(entry_SL.flatten())
        self.mask_S1QL = (key_L <= (cached_S1 + row_Q)[..., None])[:, None]

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        sequences, keys = self.shape
        pool = self.pool

        def by_sequence(entries_RD: Tensor) -> Tensor:
            return entries_RD.view(pool.heads, sequences, keys, -1).transpose(0, 1)

        q_SHQD = q_THD[self.source_SQ].transpose(1, 2)
        k_SHLD = by_sequence(pool.keys(layer, self.kv_index_HSL))
        v_SHLD = by_sequence(pool.values(layer, self.kv_index_HSL))
        out_SHQD = F.scaled_dot_product_attention(q_SHQD, k_SHLD, v_SHLD, attn_mask=self.mask_S1QL, enable_gqa=True)
        out_THD = torch.zeros_like(q_THD)
        out_THD[self.source_SQ[self.real_SQ]] = out_SHQD.transpose(1, 2)[self.real_SQ]
        return out_THD


class SdpaAttention:
    """Gather and pad, then ``scaled_dot_product_attention``."""

    name = "sdpa"
    batch_invariant = False
    on_device = False
    transposed_keys = False

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _SdpaPlan:
        """Build the index tables and the causal mask of the padded rectangle."""
        assert np.all(rows.counts_S > 0)
        return _SdpaPlan(rows, pool)
