"""Rounding to int8, a scale per row: the readable form, which kernels on a CPU and a GPU equal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 127.0
"""Largest size of a rounded number: -128 is left out, so that the two sides are alike."""
_SMALLEST = 1e-12  # of a row's largest number, so that a row of zeros has a scale


class RoundedRows(NamedTuple):
    """Rows in int8, about ``byte * scale`` each.

    Attributes:
        byte_RI: int8, contiguous.
        scale_R: float32.
    """

    byte_RI: Tensor
    scale_R: Tensor


def divided(x: Tensor, by: float) -> Tensor:
    """``x / by``, rounded once: the same bits on every device.

    By a number, torch on CUDA multiplies with the reciprocal, which is rounded too. By a tensor it divides.
    """
    return x / x.new_full((), by)


def rounded(x_RI: Tensor) -> RoundedRows:
    """Round each row to int8 at a scale of its own.

    Args:
        x_RI: any floating dtype.
    """
    wide_RI = x_RI.float()
    top_R1 = wide_RI.abs().amax(dim=-1, keepdim=True).clamp_min(_SMALLEST)
    inverse_R1 = torch.full_like(top_R1, LARGEST) / top_R1  # a number over a tensor would be rounded twice
    byte_RI = (wide_RI * inverse_R1).round().to(torch.int8).contiguous()
    return RoundedRows(byte_RI, divided(top_R1, LARGEST).squeeze(-1))
