"""Matrix products of the CPU decoder with int8 weights: rows are rounded before and scaled after by Numba kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kernels.cpu import eight_bits
from wedlm_core.model.int4 import Int4Linear
from wedlm_core.model.int8 import Int8Embedding, Int8Linear, exact_sums

_ROUND, _SCALE = 1.5e-10, 1.5e-10  # rough seconds per element on one core


class Share(Protocol):
    """Runs a kernel over items, in several threads if that pays off."""

    def __call__(self, count: int, seconds: float, part: Callable[[int, int], None]) -> None:
        """``part(first, last)`` over ``count`` items that take so many seconds on one core."""
        ...


class Int8Product:
    """``x @ weight.T + bias`` of float32 rows and int8 weights. :class:`Int8Linear` is its oracle, bit for bit.

    A row's bits depend neither on the other rows nor on their number: no padding is needed.
    """

    def __init__(self, layer: Int8Linear | Int4Linear, share: Share) -> None:
        self._weight_OI, self._share = layer.weight, share
        self._scale_O = layer.scale_O.numpy()
        bias = layer.bias
        self._bias_O = np.zeros(0, dtype=np.float32) if bias is None else bias.detach().float().numpy()

    def __call__(self, x_RI: Tensor) -> Tensor:
        """Float32 ``[R, I]`` -> ``[R, O]``."""
        rows, inputs = x_RI.shape
        outputs = len(self._scale_O)
        byte_RI, scale_R = torch.empty(rows, inputs, dtype=torch.int8), np.empty(rows, dtype=np.float32)
        given, byte = x_RI.numpy(), byte_RI.numpy()
        self._share(rows, _ROUND * rows * inputs, lambda a, b: eight_bits.round_rows(given, byte, scale_R, a, b))
        sums = self._sums(byte_RI).numpy()
        y_RO = torch.empty(rows, outputs)
        out, scale_O, bias_O = y_RO.numpy(), self._scale_O, self._bias_O
        self._share(
            rows,
            _SCALE * rows * outputs,
            lambda a, b: eight_bits.scale_sums(sums, scale_R, scale_O, bias_O, out, a, b),
        )
        return y_RO

    def _sums(self, byte_RI: Tensor) -> Tensor:
        """int32 ``[R, O]``."""
        return exact_sums(byte_RI, self._weight_OI)


def widened(embedding: Int8Embedding, ids: Tensor, out: Tensor) -> None:
    """Embed ``ids``, int64 ``[T]``, into ``out``, float32 ``[T, D]``."""
    table = embedding.weight.numpy(), embedding.scale_V.numpy()
    eight_bits.widen_rows(*table, ids.numpy(), out.numpy(), 0, len(ids))
