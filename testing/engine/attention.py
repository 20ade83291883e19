"""Random attention problems: a filled KV pool with random page tables, and the rows of one forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.config import ModelConfig
from wedlm_core.kv.pool import KVPool


@dataclass(frozen=True, kw_only=True)
class Case:
    """One forward: rows, queries, and a pool with the KV that the rows attend to."""

    rows: PackedRows
    pool: KVPool
    q_THD: Tensor
    heads: int


def model_shape(heads: int, kv_heads: int, head_dim: int, layers: int = 1) -> ModelConfig:
    """A model configuration with this attention shape; the other fields do not matter."""
    return ModelConfig(
        vocab_size=8, hidden_size=heads * head_dim, intermediate_size=8, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
    )  # fmt: skip


def make_case(
    lengths: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    device: str = "cpu",
    seed: int = 0,
    transposed_keys: bool = False,
) -> Case:
    """A case with sequences of ``(rows, cached)`` and random pages; unused pages hold noise too."""
    random, place = torch.Generator().manual_seed(seed), torch.device(device)
    counts, cached = (np.array(column, dtype=np.int64) for column in zip(*lengths, strict=True))
    pages_S = -(-(counts + cached) // page_size)
    total = int(pages_S.sum()) + 2
    deal = torch.randperm(total, generator=random)
    table = deal[torch.randint(total, (len(lengths), int(pages_S.max())), generator=random)]
    for s, (start, pages) in enumerate(zip(np.cumsum(pages_S) - pages_S, pages_S, strict=True)):
        table[s, :pages] = deal[start : start + pages]
    config = model_shape(heads, kv_heads, head_dim)
    pool = KVPool(
        config, total, page_size, device=place, dtype=dtype, kv_dtype=kv_dtype, transposed_keys=transposed_keys
    )
    k, v = torch.randn(2, total * page_size, kv_heads, head_dim, generator=random).to(place, dtype)
    pool.write(0, pool.flat_index(torch.arange(total * page_size, device=place)), k, v)
    q = torch.randn(int(counts.sum()), heads, head_dim, generator=random).to(place, dtype)
    rows = PackedRows(counts_S=counts, cached_S=cached, starts_S=np.cumsum(counts) - counts, pages_SP=table.to(place))
    return Case(rows=rows, pool=pool, q_THD=q, heads=heads)
