"""Linear layers whose weights are kept in 4 bits, and multiplied as 8-bit integers (W4A8).

Of each output, 32 inputs are a group. A weight is ``scale * multiplier * nibble``: the scale, a float32, belongs to the
output, the multiplier, an integer from 1 to 18, to the group, and the nibble goes from -7 to 7. So multiplier times
nibble is an integer of 8 bits (two steps of rounding as in QServe, arXiv 2405.04532, without its zero points), and the
products are those of :mod:`wedlm_core.model.int8`: exact, so a row's bits depend on nothing else. Tiles of outputs are
expanded when they are used. Engines use them on GPUs only; elsewhere these layers are the oracle of the GPU's kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wedlm_core.config.model import INT4_GROUP
from wedlm_core.kernels.rounding import RoundedRows, divided, rounded
from wedlm_core.model.int8 import exact_sums, has_gpu_kernels, scaled
from wedlm_core.model.int8_gpu import multiply_int4_gpu, rounded_gpu

TILE = 1024
"""Outputs that are expanded at once."""
_LARGEST, _MOST = 7, 18  # of a nibble and of a multiplier: their product is 126, 8 bits
_SMALLEST = 1e-12  # of an output's largest weight, so that an output of zeros has a scale
_SHARES = (1.0, 0.9, 0.8, 0.7)  # of a group's largest weight that the largest nibble stands for: the best is taken


def rounded_to_nibbles(weight_RI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round rows of weights to 4 bits.

    Args:
        weight_RI: any floating dtype; I is a multiple of :data:`INT4_GROUP`.

    Returns:
        Nibbles, uint8 ``[R, I / 2]``: byte j of a group's 16 has weight j in its low half and weight j + 16 in its
        high half, each plus 8. Multipliers, uint8 ``[R, I / 32]``. Scales, float32 ``[R]``.
    """
    wide_RGK = weight_RI.float().unflatten(1, (-1, INT4_GROUP))
    top_RG1 = wide_RGK.abs().amax(dim=-1, keepdim=True)
    scale_R11 = divided(top_RG1.amax(dim=1, keepdim=True).clamp_min(_SMALLEST), _LARGEST * _MOST)
    units_RGK = wide_RGK / scale_R11
    most_RG1 = divided(top_RG1 / scale_R11, _LARGEST)
    best_RGK, best_RG1, least_RG1 = torch.empty_like(units_RGK), torch.empty_like(most_RG1), None
    for share in _SHARES:
        multiplier_RG1 = (most_RG1 * share).ceil().clamp(1, _MOST)
        nibble_RGK = (units_RGK / multiplier_RG1).round().clamp(-_LARGEST, _LARGEST)
        error_RG1 = (nibble_RGK * multiplier_RG1 - units_RGK).double().square_().sum(dim=-1, keepdim=True)
        if least_RG1 is None:
            best_RGK, best_RG1, least_RG1 = nibble_RGK, multiplier_RG1, error_RG1
            continue
        better_RG1 = error_RG1 < least_RG1
        best_RGK = torch.where(better_RG1, nibble_RGK, best_RGK)
        best_RG1 = torch.where(better_RG1, multiplier_RG1, best_RG1)
        least_RG1 = torch.minimum(error_RG1, least_RG1)
    low, high = (best_RGK + 8).to(torch.uint8).split(INT4_GROUP // 2, dim=-1)
    return (low | (high << 4)).flatten(1), best_RG1.squeeze(-1).to(torch.uint8), scale_R11.flatten()


def expanded(nibble_OJ: Tensor, multiplier_OG: Tensor) -> Tensor:
    """The integers that nibbles and multipliers stand for: int8 ``[O, I]``."""
    halves_OGJ = nibble_OJ.unflatten(1, (-1, INT4_GROUP // 2))
    signed_OGK = torch.cat([halves_OGJ & 15, halves_OGJ >> 4], dim=-1).to(torch.int8) - 8
    return (signed_OGK * multiplier_OG[:, :, None].to(torch.int8)).flatten(1)


class Int4Linear(nn.Module):
    """``x W^T + b`` with W in 4 bits and the rows of x in int8.

    Args:
        outputs: O.
        inputs: I, a multiple of 32.
        bias: its parameter, or None.
        device: of the weight, which is not initialised.

    Attributes:
        weight: nibbles, uint8 ``[O, I / 2]``.
        multiplier_OG: uint8 ``[O, I / 32]``.
        scale_O: float32.
    """

    weight: Tensor
    multiplier_OG: Tensor
    scale_O: Tensor

    def __init__(
        self, outputs: int, inputs: int, bias: nn.Parameter | None = None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outputs, inputs // 2, dtype=torch.uint8, device=device))
        self.register_buffer(
            "multiplier_OG", torch.empty(outputs, inputs // INT4_GROUP, dtype=torch.uint8, device=device)
        )
        self.register_buffer("scale_O", torch.empty(outputs, device=device))
        self.bias = bias

    @classmethod
    def of(cls, linear: nn.Linear) -> Int4Linear:
        """The rounded copy of a layer; the bias is shared."""
        layer = cls(linear.out_features, linear.in_features, linear.bias, linear.weight.device)
        layer.put(0, linear.weight.detach())
        return layer

    def put(self, start: int, weight_RI: Tensor) -> None:
        """Round these rows of the weight, in any floating dtype, and store them from row ``start`` on."""
        rows = slice(start, start + len(weight_RI))
        own = self.weight[rows], self.multiplier_OG[rows], self.scale_O[rows]
        for mine, found in zip(own, rounded_to_nibbles(weight_RI), strict=True):
            mine.copy_(found)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` -> ``[..., O]`` in the dtype of ``x``."""
        rows = (rounded_gpu if has_gpu_kernels(x.device) else rounded)(x.flatten(0, -2))
        return self.multiply(rows, x.dtype).unflatten(0, x.shape[:-1])

    def multiply(self, rows: RoundedRows, dtype: torch.dtype) -> Tensor:
        """R rows that are rounded already -> ``[R, O]`` in ``dtype``."""
        if has_gpu_kernels(self.weight.device):
            return multiply_int4_gpu(rows, self.weight, self.multiplier_OG, self.scale_O, self.bias, dtype)
        tiles = zip(self.weight.split(TILE), self.multiplier_OG.split(TILE), strict=True)
        sums_RO = torch.cat([exact_sums(rows.byte_RI, expanded(*tile)) for tile in tiles], dim=-1)
        return scaled(sums_RO, rows.scale_R, self.scale_O, self.bias, dtype)

    def extra_repr(self) -> str:
        """Shape and dtype."""
        return f"{2 * self.weight.shape[1]}, {self.weight.shape[0]}, dtype=int4"
