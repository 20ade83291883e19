"""The attention pattern of dual-stream training: who attends to whom, and attention by that."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def dual_stream_mask(document: Tensor, position: Tensor, limit: Tensor, block: Tensor) -> Tensor:
    """Which rows each row of a batch attends to.

    A memory row attends to the memory rows of its document up to its own position. A prediction row attends to the
    memory rows of its document before its block, and causally, in physical order, to its own block. A padding row
    (document below 0) attends only to itself.

    Args:
        document: int ``[B, T]``, document of each row, -1 for padding.
        position: int ``[B, T]``, logical positions.
        limit: int ``[B, T]``, first memory position that the row does not attend to.
        block: int ``[B, T]``, 0 for memory rows, else the number of the block in its document.

    Returns:
        bool ``[B, 1, T, T]`` for ``scaled_dot_product_attention``.
    """
    rows = document.shape[1]
    same = document[:, :, None] == document[:, None, :]
    to_memory = (block == 0)[:, None, :] & (position[:, None, :] < limit[:, :, None])
    causal = torch.ones(rows, rows, dtype=torch.bool, device=document.device).tril()
    to_block = (block != 0)[:, None, :] & (block[:, :, None] == block[:, None, :]) & causal
    alone = torch.eye(rows, dtype=torch.bool, device=document.device)
    sees = (same & (document >= 0)[:, :, None] & (to_memory | to_block)) | alone
    return sees[:, None]


class MaskedAttend:
    """The decoder's ``Attend`` for training: attention over the rows of a batch with a fixed mask.

    Args:
        mask: bool or additive ``[B, 1, T, T]``.
    """

    def __init__(self, mask: Tensor) -> None:
        # Converted once: a boolean mask would be converted in the forward and backward of every layer.
        self.mask = torch.zeros(()).to(mask.device).where(mask, float("-inf")) if mask.dtype == torch.bool else mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``q [B, T, H, Dh]``, ``k, v [B, T, Hkv, Dh]`` -> ``[B, T, H, Dh]``."""
        groups = q.shape[-2] // k.shape[-2]
        # Expanded here: the fused CPU kernel needs equal head counts, and enable_gqa falls back to matmuls.
        k, v = k.repeat_interleave(groups, dim=-2), v.repeat_interleave(groups, dim=-2)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=self.mask
        )
        return out.transpose(1, 2)
