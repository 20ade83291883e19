"""Rotary position embedding with YaRN (arXiv 2309.00071): tables indexed by logical position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wedlm_core.config import ModelConfig, YarnScaling


def _yarn(periods: Tensor, theta: float, dim: int, yarn: YarnScaling) -> tuple[Tensor, float]:
    """Frequencies and attention scale: low frequencies interpolated, high ones kept (YaRN, "NTK-by-parts").

    The rounding follows transformers: at position 10^5 the last bit of a frequency is a hundredth of a radian.
    """

    def dimension_of(rotations: float) -> float:
        # The (fractional) pair index whose wavelength fits the original context ``rotations`` times.
        length = yarn.original_max_position_embeddings
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(yarn.beta_fast), dimension_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    ramp = (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / width
    keep = 1.0 - ramp.clamp(0, 1)
    mixed = 1.0 / (yarn.factor * periods) * (1 - keep) + 1.0 / periods * keep

    def scale(factor: float, mscale: float = 1.0) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if yarn.attention_factor is not None:
        return mixed, yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return mixed, scale(yarn.factor, yarn.mscale) / scale(yarn.factor, yarn.mscale_all_dim)
    return mixed, scale(yarn.factor)


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions ``0 .. length-1``: two float32 ``[length, head_dim // 2]``."""
    dim = config.head_dim
    # Always on the CPU: a model on the meta device needs real tables too.
    periods = config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64, device="cpu").float() / dim)
    frequencies, attention_scale = 1.0 / periods, 1.0
    if config.rope_scaling is not None:
        frequencies, attention_scale = _yarn(periods, config.rope_theta, dim, config.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies)
    return angles.cos() * attention_scale, angles.sin() * attention_scale


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[..., H, head_dim]`` by tables ``[..., 1, head_dim // 2]``.

    Elements i and ``i + head_dim // 2`` form a pair.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
