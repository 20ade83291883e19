"""The oracle of :mod:`wedlm_core.kernels.cpu.noise`: Gumbel noise in torch."""

from __future__ import annotations

import torch
from torch import Tensor

_WEYL = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_NOISE_LANES = 64  # vocabulary is padded to this, so no element falls into a scalar tail of a vector loop


def _mix(x: Tensor) -> Tensor:
    """SplitMix64 finaliser on int64 (two's complement; the mask makes the right shifts logical)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def gumbel_noise(seed_R: Tensor, position_R: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise for each (seed, position, token), reproducible in any batch.

    Args:
        seed_R: int64 ``[R]``, the seed of each row's sequence.
        position_R: int64 ``[R]``, the absolute position of the token that is being chosen.
        vocab_size: V.

    Returns:
        float32 ``[R, V]``: ``-log(E)`` with ``E`` exponential, from 53 random bits per element.
    """
    lanes = -(-vocab_size // _NOISE_LANES) * _NOISE_LANES
    key_R = _mix(_mix(seed_R * 2 + 1) + position_R * _WEYL)
    token_V = torch.arange(1, lanes + 1, device=seed_R.device, dtype=torch.int64)
    bits_RV = (_mix(key_R[:, None] + token_V * _WEYL) >> 11) & ((1 << 53) - 1)
    uniform_RV = (bits_RV.to(torch.float32) + 0.5).mul_(2.0**-53).clamp_(max=1.0 - 2.0**-24)
    return uniform_RV.neg_().log1p_().neg_().log_().neg_()[:, :vocab_size]
