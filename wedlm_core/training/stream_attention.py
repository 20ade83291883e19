"""The attention pattern of dual-stream training: a slow definition and the vectorised form that training uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def oracle_mask(document_T: Tensor, position_T: Tensor, limit_T: Tensor, block_T: Tensor) -> Tensor:
    """The attention mask by its definition, one pair at a time; tests compare :func:`dual_stream_mask` with it.

    A memory row attends to the memory rows of its document up to its own position. A prediction row attends to the
    memory rows of its document before its block, and causally, in physical order, to its own block. A padding row
    (document below 0) attends only to itself.

    Returns:
        bool ``[T, T]``: ``[q, k]`` is True where row q attends to row k.
    """
    rows = len(document_T)
    sees_TT = torch.zeros(rows, rows, dtype=torch.bool)
    for q in range(rows):
        sees_TT[q, q] = True
        for k in range(rows):
            if document_T[q] < 0 or document_T[q] != document_T[k]:
                continue
            memory_q, memory_k = bool(block_T[q] == 0), bool(block_T[k] == 0)
            if memory_q and memory_k:
                sees_TT[q, k] = bool(position_T[k] <= position_T[q])
            elif memory_k:
                sees_TT[q, k] = bool(position_T[k] < limit_T[q])
            elif not memory_q:
                sees_TT[q, k] = bool(block_T[k] == block_T[q]) and k <= q
    return sees_TT


def dual_stream_mask(document: Tensor, position: Tensor, limit: Tensor, block: Tensor) -> Tensor:
    """The mask of :func:`oracle_mask`, for a whole batch.

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
