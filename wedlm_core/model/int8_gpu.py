"""What lies around a product of int8 rows and weights on a GPU: one Triton kernel before it and one after.

:func:`wedlm_core.kernels.rounding.rounded` and the plain arithmetic of :class:`wedlm_core.model.int8.Int8Linear` are
their oracles, bit for bit. As torch operations the two are some fourteen kernels, which in a small forward take longer
than the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wedlm_core.devices import on_device

__all__ = ["rounded_gpu", "scaled_gpu"]

_OUTPUTS = 1024  # of a program


def rounded_gpu(x_RI: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`wedlm_core.kernels.rounding.rounded`; the scale of a row that is no number is NaN."""
    from wedlm_core.kernels.gpu.rounding import round_rows_int8

    rows, width = x_RI.shape
    if x_RI.stride(1) != 1:
        x_RI = x_RI.contiguous()
    byte_RI = torch.empty(rows, width, dtype=torch.int8, device=x_RI.device)
    scale_R = torch.empty(rows, device=x_RI.device)
    with on_device(x_RI.device):
        block = 1 << (width - 1).bit_length()
        round_rows_int8[(rows,)](
            x_RI, x_RI.stride(0), byte_RI, scale_R, width, BLOCK=block, num_warps=8, enable_fp_fusion=False
        )
    return byte_RI, scale_R


def scaled_gpu(sums_RO: Tensor, scale_R: Tensor, scale_O: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``sums * (scale_R * scale_O) + bias`` in ``dtype``.

    Args:
        sums_RO: int32.
        scale_R: float32, of the rows.
        scale_O: float32, of the weights.
        bias_O: any floating dtype, or None.
        dtype: of the result.
    """
    from wedlm_core.kernels.gpu.rounding import scale_sums

    rows, width = sums_RO.shape
    out_RO = torch.empty(rows, width, dtype=dtype, device=sums_RO.device)
    with on_device(sums_RO.device):
        scale_sums[(rows, -(-width // _OUTPUTS))](
            sums_RO.contiguous(), scale_R, scale_O, scale_O if bias_O is None else bias_O, out_RO, width,
            HAS_BIAS=bias_O is not None, BLOCK=_OUTPUTS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out_RO
