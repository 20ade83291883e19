"""Linear layers with one byte per weight (int8 or 8-bit float) and one scale per output.

``EngineConfig.weight_dtype`` selects it. The embedding, the output head and the norms are not quantised. The loss of
quality is in ``benchmarks/results`` (``python -m benchmarks.decode.quantised_quality``).
"""

from __future__ import annotations

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wedlm_core.devices import on_device
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.decoder import Decoder

__all__ = ["QUANTISED_DTYPES", "QuantisedLinear", "quantise", "round_in_one_pass"]

QUANTISED_DTYPES = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
"""Names for ``EngineConfig.weight_dtype``."""

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


class QuantisedLinear(nn.Module):
    """``x W^T + b`` with W in one byte each, symmetric around zero, scaled per output.

    int8 rounds only the weights. Each use converts them back to ``x``'s dtype, exactly, and multiplies the result by
    the scale. That halves the memory of bfloat16 weights and makes no forward faster.

    float8_e4m3fn rounds the weights and the inputs, the latter with one scale per row, so that tensor cores of compute
    capability 9.0 multiply them directly (``torch._scaled_mm``). Elsewhere the same rounded numbers are converted and
    multiplied, which is slower, so quality measured on a CPU holds for a GPU too.

    Args:
        linear: the layer to quantise. Its bias is kept, its weight is copied.
        dtype: ``torch.int8`` or ``torch.float8_e4m3fn``.

    Attributes:
        weight: ``[O, I]`` in ``dtype``.
        scale_O: float32.
    """

    weight: Tensor
    scale_O: Tensor

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight_OI, scale_O1 = _rounded(linear.weight.detach(), dtype)
        self.register_buffer("weight", weight_OI)
        self.register_buffer("scale_O", scale_O1.squeeze(1))
        self.bias = linear.bias
        self._on_tensor_cores = dtype == torch.float8_e4m3fn and _has_row_scaled_products(weight_OI)
        self._in_one_pass = self._on_tensor_cores and importlib.util.find_spec("triton") is not None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` -> ``[..., O]`` in the dtype of ``x``; a row's result does not depend on other rows' values."""
        flat_RI = x.flatten(0, -2)
        if self.weight.dtype == torch.int8:
            y_RO = F.linear(flat_RI, self.weight.to(x.dtype)) * self.scale_O
        else:
            byte_RI, scale_R1 = self._round_rows(flat_RI)
            y_RO = self._product(byte_RI, scale_R1, x.dtype)
        if self.bias is not None:
            y_RO = y_RO + self.bias
        return y_RO.to(x.dtype).unflatten(0, x.shape[:-1])

    def _round_rows(self, x_RI: Tensor) -> tuple[Tensor, Tensor]:
        return round_in_one_pass(x_RI) if self._in_one_pass else _rounded(x_RI, self.weight.dtype)

    def _product(self, byte_RI: Tensor, scale_R1: Tensor, dtype: torch.dtype) -> Tensor:
        if self._on_tensor_cores:
            return torch._scaled_mm(
                byte_RI,
                self.weight.t(),
                scale_a=scale_R1,
                scale_b=self.scale_O[None, :],
                out_dtype=torch.bfloat16,  # the only output dtype that scaling by row supports everywhere
                use_fast_accum=False,  # sums in full float32, as on other devices
            )
        return F.linear(byte_RI.to(dtype), self.weight.to(dtype)) * (scale_R1 * self.scale_O)

    def extra_repr(self) -> str:
        """Shape and dtype."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, dtype={self.weight.dtype}"


def _rounded(x_RI: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` rounded to one byte per value, contiguous, and the scale of each row, float32 ``[R, 1]``."""
    wide_RI = x_RI.float()
    scale_R1 = (wide_RI.abs().amax(dim=-1, keepdim=True) / _LARGEST[dtype]).clamp_min(1e-12)
    share_RI = wide_RI / scale_R1
    if dtype == torch.int8:
        share_RI = share_RI.round()
    return share_RI.to(dtype).contiguous(), scale_R1


def round_in_one_pass(x_RI: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` in float8_e4m3fn and the scale of each row, float32 ``[R, 1]``, by one Triton kernel."""
    from wedlm_core.kernels.gpu.rounding import round_rows

    rows, width = x_RI.shape
    if x_RI.stride(1) != 1:
        x_RI = x_RI.contiguous()
    byte_RI = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x_RI.device)
    scale_R1 = torch.empty(rows, 1, device=x_RI.device)
    with on_device(x_RI.device):
        block = 1 << (width - 1).bit_length()
        round_rows[(rows,)](x_RI, x_RI.stride(0), byte_RI, scale_R1, width, BLOCK=block, num_warps=8)
    return byte_RI, scale_R1


def _has_row_scaled_products(weight_OI: Tensor) -> bool:
    """Whether the device multiplies 8-bit floats with a scale per row and per output."""
    if weight_OI.device.type != "cuda" or not hasattr(torch, "_scaled_mm"):
        return False
    whole = weight_OI.shape[0] % 16 == 0 and weight_OI.shape[1] % 16 == 0
    return whole and torch.cuda.get_device_capability(weight_OI.device) >= (9, 0)


@torch.no_grad()
def quantise(model: Decoder, weight_dtype: str) -> Decoder:
    """Replace the linear layers of ``model`` by quantised ones, in place, one at a time.

    Args:
        model: a decoder with its weights, on any device.
        weight_dtype: a name of :data:`QUANTISED_DTYPES`, or "auto", which changes nothing.

    Returns:
        ``model``.

    Raises:
        ConfigError: ``weight_dtype`` is another name.
    """
    if weight_dtype == "auto":
        return model
    if weight_dtype not in QUANTISED_DTYPES:
        rule = f'one of {sorted(QUANTISED_DTYPES)} or "auto"'
        raise ConfigError(explain("weight_dtype", weight_dtype, rule, 'Use "auto".'))
    with on_device(model.embed.weight.device):
        for layer in model.layers:
            for name in _PROJECTIONS:
                setattr(layer, name, QuantisedLinear(getattr(layer, name), QUANTISED_DTYPES[weight_dtype]))
    return model
