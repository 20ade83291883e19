"""``blockwise``: block diffusion with stop-and-wait, the baseline of the paper (its figure 4c)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.decoding.strategies.base import decodes
from wedlm_core.decoding.strategies.window import WindowDecoding
from wedlm_core.decoding.window_state import WindowParams
from wedlm_core.types import Strategy


@decodes(Strategy.BLOCKWISE)
@dataclass(frozen=True)
class BlockwiseDecoding(WindowDecoding):
    """The published rule on a window that commits as a whole: nothing leaves it before every place is filled."""

    def committable(self, lead_S: Tensor, params: WindowParams) -> Tensor:
        """int64 ``[S]``: the whole block or nothing."""
        return torch.where(lead_S == params.masks_S, lead_S, 0)
