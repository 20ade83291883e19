"""What an engine will ask of its attention backend; what backends are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["AttentionProblem"]


@dataclass(frozen=True, kw_only=True)
class AttentionProblem:
    """Device, dtypes and sizes of all forwards of an engine.

    Attributes:
        dtype: of queries and results.
        kv_dtype: of the pool's entries.
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
