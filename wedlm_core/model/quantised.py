"""Decoders with a byte or less per weight: which layers are replaced, and the layers of 8-bit floats.

``EngineConfig.weight_dtype`` selects it. "int8" (:mod:`wedlm_core.model.int8`) replaces the layers' products, the
output head and the embedding; "int4" (:mod:`wedlm_core.model.int4`), on GPUs, the layers' products, and the other two
as "int8" does; "fp8_e4m3" the layers' products only. Norms stay as they are. The loss of quality is in
``benchmarks/results``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wedlm_core.devices import on_device
from wedlm_core.errors import ConfigError, explain
from wedlm_core.kernels.rounding import divided
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.int4 import Int4Linear
from wedlm_core.model.int8 import Int8Embedding, Int8Linear

QUANTISED_DTYPES = {"int8": torch.int8, "int4": torch.uint8, "fp8_e4m3": torch.float8_e4m3fn}
"""Names for ``EngineConfig.weight_dtype``, and the dtype of the layers' weights in memory."""
ExactLinear = Int8Linear | Int4Linear
_Kind = type[Int8Linear] | type[Int4Linear]
EXACT_DTYPES: Mapping[str, _Kind] = {"int8": Int8Linear, "int4": Int4Linear}
"""Those whose products are sums of integers (``EXACT_WEIGHT_DTYPES``), and their layers."""

_LARGEST = 448.0  # of float8_e4m3fn
_PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")

_Make = Callable[[nn.Linear], ExactLinear]


class Fp8Linear(nn.Module):
    """``x W^T + b`` with W and the rows of x in float8_e4m3fn, W with one scale per output, x with one per row.

    Tensor cores of compute capability 9.0 multiply them directly, by ``torch.nn.functional.scaled_mm``. Elsewhere the
    same rounded numbers are converted and multiplied, which is slower, so quality measured on a CPU holds for a GPU
    too.

    Args:
        linear: the layer to quantise. Its bias is kept, its weight is copied.

    Attributes:
        weight: float8_e4m3fn ``[O, I]``.
        scale_O: float32.
    """

    weight: Tensor
    scale_O: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight_OI, scale_O1 = rounded_to_fp8(linear.weight.detach())
        self.register_buffer("weight", weight_OI)
        self.register_buffer("scale_O", scale_O1.squeeze(1))
        self.bias = linear.bias
        self._on_tensor_cores = _has_row_scaled_products(weight_OI)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` -> ``[..., O]`` in the dtype of ``x``; a row's result does not depend on other rows' values."""
        flat_RI = x.flatten(0, -2)
        byte_RI, scale_R1 = round_in_one_pass(flat_RI) if self._on_tensor_cores else rounded_to_fp8(flat_RI)
        y_RO = self._product(byte_RI, scale_R1, x.dtype)
        if self.bias is not None:
            y_RO = y_RO + self.bias
        return y_RO.to(x.dtype).unflatten(0, x.shape[:-1])

    def _product(self, byte_RI: Tensor, scale_R1: Tensor, dtype: torch.dtype) -> Tensor:
        if self._on_tensor_cores:
            return F.scaled_mm(
                byte_RI,
                self.weight.t(),
                scale_R1,
                F.ScalingType.RowWise,
                self.scale_O[None, :],
                F.ScalingType.RowWise,
                output_dtype=torch.bfloat16,  # the only one that scaling by row supports everywhere
                use_fast_accum=False,  # sums in full float32, as on other devices
            )
        return F.linear(byte_RI.to(dtype), self.weight.to(dtype)) * (scale_R1 * self.scale_O)

    def extra_repr(self) -> str:
        """Shape and dtype."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, dtype={self.weight.dtype}"


def rounded_to_fp8(x_RI: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` rounded to one byte per value, contiguous, and the scale of each row, float32 ``[R, 1]``."""
    wide_RI = x_RI.float()
    scale_R1 = divided(wide_RI.abs().amax(dim=-1, keepdim=True), _LARGEST).clamp_min(1e-12)
    return (wide_RI / scale_R1).to(torch.float8_e4m3fn).contiguous(), scale_R1


def round_in_one_pass(x_RI: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` in float8_e4m3fn and the scale of each row, float32 ``[R, 1]``, by one Triton kernel."""
    from wedlm_core.kernels.gpu.rounding_gpu import round_rows

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
    if weight_OI.device.type != "cuda":
        return False
    whole = weight_OI.shape[0] % 16 == 0 and weight_OI.shape[1] % 16 == 0
    return whole and torch.cuda.get_device_capability(weight_OI.device) >= (9, 0)


@torch.no_grad()
def quantise(model: Decoder, weight_dtype: str, *, head: bool = True) -> Decoder:
    """Replace the linear layers of ``model`` by quantised ones, in place, one at a time.

    Args:
        model: a decoder with its weights, on any device.
        weight_dtype: a name of :data:`QUANTISED_DTYPES`, or "auto", which changes nothing.
        head: whether the output head and the embedding are rounded too, to int8, if products are exact.

    Returns:
        ``model``.

    Raises:
        ConfigError: ``weight_dtype`` is another name, or a layer does not fit it.
    """
    if weight_dtype == "auto":
        return model
    if weight_dtype not in QUANTISED_DTYPES:
        rule = f'one of {sorted(QUANTISED_DTYPES)} or "auto"'
        raise ConfigError(explain("weight_dtype", weight_dtype, rule, 'Use "auto".'))
    model.config.check_weight_dtype(weight_dtype)
    with on_device(model.device):
        if weight_dtype in EXACT_DTYPES:
            _replace(model, EXACT_DTYPES[weight_dtype].of, Int8Linear.of, head=head)
        else:
            for layer in model.layers:
                for name in _PROJECTIONS:
                    setattr(layer, name, Fp8Linear(getattr(layer, name)))
    return model


def prepare_exact(model: Decoder, weight_dtype: str, device: torch.device | str, *, head: bool = True) -> Decoder:
    """Replace the linear layers of a model without weights (on the meta device) by exact ones with memory, unfilled.

    Args:
        model: the decoder.
        weight_dtype: a name of :data:`EXACT_DTYPES`.
        device: of the memory.
        head: as for :func:`quantise`.

    Raises:
        ConfigError: a layer is too wide, or its inputs cannot be grouped.
    """
    model.config.check_weight_dtype(weight_dtype)

    def unfilled(kind: _Kind) -> _Make:
        return lambda one: kind(one.out_features, one.in_features, one.bias, device)

    return _replace(model, unfilled(EXACT_DTYPES[weight_dtype]), unfilled(Int8Linear), head=head)


def _replace(model: Decoder, make: _Make, make_head: _Make, *, head: bool) -> Decoder:
    for layer in model.layers:
        for name in _PROJECTIONS:
            setattr(layer, name, make(getattr(layer, name)))
    if head:
        embedding, tied = model.embed.weight, model.config.tie_word_embeddings
        table = nn.Linear(embedding.shape[1], embedding.shape[0], bias=False, device="meta")
        table.weight = nn.Parameter(embedding, requires_grad=False)
        rounded_table = make_head(table)
        assert isinstance(rounded_table, Int8Linear)
        model.set_submodule("lm_head", rounded_table if tied else make_head(model.lm_head))
        model.set_submodule("embed", Int8Embedding(rounded_table, model.dtype))
    return model
