"""The dual-stream loss: masked cross-entropy weighted by 1/gamma, plus next-token loss on the memory stream.

And the attention between the rows of the two streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.model.decoder import Decoder
from wedlm_core.training.batches import Batch
from wedlm_core.training.masking import IGNORE


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


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """``total`` is minimised. The other losses, in nats per weighted token, are for the curves only."""

    total: Tensor
    next_token: Tensor
    masked: Tensor


def dual_stream_loss(model: Decoder, batch: Batch, forward: object = None) -> LossParts:
    """Loss of one batch.

    The total is the sum of the weighted row losses divided by a *constant* (half the rows of the batch). So the loss of
    several equal-shaped batches is the mean of their losses, and accumulated and data-parallel gradients are equal.

    Args:
        model: the decoder; logits are computed only for rows with a loss.
        batch: a packed batch.
        forward: the model compiled with torch.compile, or None.
    """
    mask = dual_stream_mask(batch.document, batch.positions, batch.limit, batch.block)
    run = model if forward is None else forward
    hidden_BTD = run(batch.ids, batch.positions, MaskedAttend(mask))  # type: ignore[operator]
    wanted = (batch.target != IGNORE) & (batch.weight > 0)
    logits_RV = model.logits(hidden_BTD[wanted])
    loss_R = F.cross_entropy(logits_RV, batch.target[wanted], reduction="none")
    weight_R, memory_R = batch.weight[wanted], (batch.block[wanted] == 0).float()
    weighted_R = loss_R * weight_R
    constant = batch.ids.numel() / 2

    def mean(rows_R: Tensor) -> Tensor:
        return ((weighted_R * rows_R).sum() / (weight_R * rows_R).sum().clamp_min(1e-9)).detach()

    return LossParts(total=weighted_R.sum() / constant, next_token=mean(memory_R), masked=mean(1 - memory_R))
