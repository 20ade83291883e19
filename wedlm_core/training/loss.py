"""The dual-stream loss: masked cross-entropy weighted by 1/gamma, plus next-token loss on the memory stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from wedlm_core.model.decoder import Decoder
from wedlm_core.training.batches import Batch
from wedlm_core.training.masking import IGNORE
from wedlm_core.training.stream_attention import MaskedAttend, dual_stream_mask


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
