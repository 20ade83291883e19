"""AttentionProblem: the device, dtypes and sizes of an engine. Backends decide by them whether they can run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class AttentionProblem:
    """Device, dtypes and sizes that all forwards of an engine have in common.

    Attributes:
        dtype: dtype of queries and results.
        kv_dtype: dtype of the KV pool.
        page_size: tokens per page.
        batch_invariant: whether a row's result must be bitwise independent of the other rows.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    batch_invariant: bool
