"""Matrix products of the CPU decoder with weights in 4 bits, expanded to int8 by a Numba kernel tile by tile."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from wedlm_core.kernels.cpu import four_bits
from wedlm_core.model.int4 import Int4Linear
from wedlm_core.model.int8 import exact_sums
from wedlm_core.model.products_int8 import Int8Product, Share

__all__ = ["Int4Product"]

_TILE_BYTES = 1 << 20  # of expanded weights: they stay in a core's cache until they are multiplied
_EXPAND = 6e-11  # rough seconds per weight on one core


class Int4Product(Int8Product):
    """``x @ weight.T + bias`` of float32 rows and weights in 4 bits. :class:`Int4Linear` is its oracle, bit for bit."""

    def __init__(self, layer: Int4Linear, share: Share) -> None:
        super().__init__(layer, share)
        outputs, inputs = layer.weight.shape[0], 2 * layer.weight.shape[1]
        tile = max(64, _TILE_BYTES // inputs)
        self._edges = [*range(0, outputs, tile), outputs]
        self._tile_OI = torch.empty(min(tile, outputs), inputs, dtype=torch.int8)
        self._nibbles = [
            (layer.weight[a:b].numpy(), layer.multiplier_OG[a:b].numpy()) for a, b in pairwise(self._edges)
        ]

    def _sums(self, byte_RI: Tensor) -> Tensor:
        sums_RO = torch.empty(len(byte_RI), self._edges[-1], dtype=torch.int32)
        for (begin, end), (nibble, multiplier) in zip(pairwise(self._edges), self._nibbles, strict=True):
            tile_OI = self._tile_OI[: end - begin]
            expand = partial(four_bits.expand_rows, nibble, multiplier, tile_OI.numpy())
            self._share(end - begin, _EXPAND * tile_OI.numel(), expand)
            sums_RO[:, begin:end] = exact_sums(byte_RI, tile_OI)
        return sums_RO
