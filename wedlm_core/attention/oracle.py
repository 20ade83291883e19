"""Backend ``oracle``: attention by its definition, one dot product at a time. It defines the correct result.

It is shipped: the self-test compares other backends with it on the user's device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wedlm_core.attention.attention_protocol import PackedRows
from wedlm_core.kv.pool import KVPool


class _OraclePlan:
    def __init__(self, rows: PackedRows, pool: KVPool) -> None:
        self.rows, self.pool = rows, pool

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        rows, pool, size = self.rows, self.pool, self.pool.page_size
        out_THD = torch.zeros_like(q_THD)
        group = q_THD.shape[1] // pool.heads
        for s in range(len(rows.counts_S)):
            start, count, cached = int(rows.starts_S[s]), int(rows.counts_S[s]), int(rows.cached_S[s])
            index_L = torch.arange(cached + count, device=q_THD.device)
            entry_L = rows.pages_SP[s, index_L // size] * size + index_L % size
            k_HLD = pool.keys(layer, pool.flat_index(entry_L)).view(pool.heads, -1, pool.head_dim)
            v_HLD = pool.values(layer, pool.flat_index(entry_L)).view(pool.heads, -1, pool.head_dim)
            for r in range(count):
                seen = cached + r + 1
                for h in range(q_THD.shape[1]):
                    scores_L = k_HLD[h // group, :seen].float() @ q_THD[start + r, h].float()
                    weights_L = torch.softmax(scores_L * pool.head_dim**-0.5, dim=-1)
                    out_THD[start + r, h] = (weights_L @ v_HLD[h // group, :seen].float()).to(out_THD.dtype)
        return out_THD


class OracleAttention:
    """Slow and readable; the self-test and the tests compare every other backend with it."""

    name = "oracle"
    batch_invariant = False
    on_device = False
    transposed_keys = False

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _OraclePlan:
        """Nothing to prepare."""
        return _OraclePlan(rows, pool)
