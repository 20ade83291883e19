"""AttentionProblem: the device, dtypes and sizes of an engine. Backends decide by them whether they can run."""

from __future__ import annotations

import re
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

    def why_no_flash(self) -> str | None:
        """Why FlashAttention cannot be used, from any package; None if nothing rules it out."""
        if self.device.type != "cuda":
            return f"it runs on CUDA devices, not on {self.device.type}"
        capability = torch.cuda.get_device_capability(self.device)
        if capability < (8, 0):
            return f"it needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
        if self.dtype not in (torch.bfloat16, torch.float16):
            return f"it computes in bfloat16 and float16, not in {self.dtype}"
        if self.kv_dtype != self.dtype:
            return f"it reads keys and values in {self.dtype} only, not in {self.kv_dtype}"
        if self.head_dim > 256 or self.head_dim % 8:
            return f"it takes a head_dim of a multiple of 8 up to 256, not {self.head_dim}"
        return None


def version_of(text: str) -> tuple[int, ...]:
    """The numeric part of a version: ``"2.13.0+cu130"`` gives ``(2, 13, 0)``."""
    return tuple(int(number) for number in re.findall(r"\d+", text.split("+")[0])[:3])
