"""Linear layers of 8-bit weights and 8-bit inputs (W8A8), exact between their roundings.

A weight has one scale per output, an input one scale per row; both are symmetric around zero. The product of the two is
a sum of integers, exact in int32 in whatever order it is taken. So a row's result depends neither on the other rows nor
on the kernel, the number of threads or the device. ``EngineConfig.weight_dtype="int8"`` selects it; the loss of quality
is in ``benchmarks/results``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kernels.rounding import RoundedRows, rounded
from wedlm_core.model.int8_gpu import kinds_of_tiles, multiply_int8_gpu, rounded_gpu

_FLOAT32_INPUTS = 2**24 // 127**2


def scaled(sums_RO: Tensor, scale_R: Tensor, scale_O: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``sums * (scale_R * scale_O) + bias``, computed in float32, in ``dtype``."""
    y_RO = sums_RO.float() * (scale_R[:, None] * scale_O)
    return (y_RO if bias_O is None else y_RO + bias_O).to(dtype)


def has_gpu_kernels(device: torch.device) -> bool:
    """Whether Triton kernels round rows and multiply them on a device, exactly."""
    return device.type == "cuda" and why_no_triton(device) is None and why_no_gpu_products(device) is None


@functools.cache
def why_no_gpu_products(device: torch.device) -> str | None:
    """Why :func:`multiply_int8_gpu` may not be used on a device; None if extreme values give exact sums."""
    weight_OI, one = _extreme_weights(device), torch.ones((), device=device)
    for tiles in kinds_of_tiles():
        rows = tiles.rows + 3
        byte_RI = weight_OI[torch.arange(rows, device=device) % len(weight_OI)].contiguous()
        given = RoundedRows(byte_RI, one.expand(rows).contiguous())
        try:
            scale_O = one.expand(len(weight_OI)).contiguous()
            found = multiply_int8_gpu(given, weight_OI, scale_O, None, torch.float32, tiles)
        except Exception as error:  # a compiler or driver may raise anything
            return f"a product of int8 rows failed ({type(error).__name__}: {error})"
        if not torch.equal(found, exact_sums(byte_RI, weight_OI).float()):
            return f"a product of int8 rows in {tiles} cuts off large sums"
    return None


def exact_sums(byte_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """int32 ``[R, O]``: the products of int8 rows and int8 weights, on any device.

    So few inputs are added up at once that float32 is exact, in whatever order.
    """
    sums_RO = torch.zeros(len(byte_RI), len(weight_OI), dtype=torch.int32, device=byte_RI.device)
    for byte, weight in zip(byte_RI.split(_FLOAT32_INPUTS, 1), weight_OI.split(_FLOAT32_INPUTS, 1), strict=True):
        sums_RO += torch.mm(byte.float(), weight.float().t()).to(torch.int32)
    return sums_RO


def _extreme_weights(device: torch.device) -> Tensor:
    """int8 ``[64, 256]``, with some of the largest possible sums."""
    extreme = torch.tensor([127, -127, 127, 127, -127, 126, 1, -127], dtype=torch.int8, device=device)
    weight_OI = extreme.repeat(64, 32)
    weight_OI[1] = 127
    weight_OI[2] = -127
    weight_OI[3::2] = weight_OI[3::2].roll(1, dims=1)
    return weight_OI


def put_rounded(weight_OI: Tensor, scale_O: Tensor, start: int, weight_RI: Tensor) -> None:
    """Round rows and store them, and their scales, from row ``start`` on."""
    own, scale_R = weight_OI[start : start + len(weight_RI)], scale_O[start : start + len(weight_RI)]
    if weight_OI.device.type == "cpu":  # in one pass, several times as fast as by torch
        from wedlm_core.kernels.cpu.eight_bits import round_rows

        round_rows(weight_RI.float().contiguous().numpy(), own.numpy(), scale_R.numpy(), 0, len(scale_R))
        return
    for mine, found in zip((own, scale_R), rounded(weight_RI), strict=True):
        mine.copy_(found)


class Int8Linear(nn.Module):
    """``x W^T + b`` with W and the rows of x in int8.

    Args:
        outputs: O.
        inputs: I, :data:`MOST_EXACT_INPUTS` at most.
        bias: its parameter, or None.
        device: of the weight, which is not initialised.

    Attributes:
        weight: int8 ``[O, I]``.
        scale_O: float32.
    """

    weight: Tensor
    scale_O: Tensor

    def __init__(
        self, outputs: int, inputs: int, bias: nn.Parameter | None = None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outputs, inputs, dtype=torch.int8, device=device))
        self.register_buffer("scale_O", torch.empty(outputs, device=device))
        self.bias = bias

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The rounded copy of a layer; the bias is shared."""
        layer = cls(linear.out_features, linear.in_features, linear.bias, linear.weight.device)
        layer.put(0, linear.weight.detach())
        return layer

    def put(self, start: int, weight_RI: Tensor) -> None:
        """Round these rows of the weight, in any floating dtype, and store them from row ``start`` on."""
        put_rounded(self.weight, self.scale_O, start, weight_RI)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` -> ``[..., O]`` in the dtype of ``x``."""
        rows = (rounded_gpu if has_gpu_kernels(x.device) else rounded)(x.flatten(0, -2))
        return self.multiply(rows, x.dtype).unflatten(0, x.shape[:-1])

    def multiply(self, rows: RoundedRows, dtype: torch.dtype) -> Tensor:
        """R rows that are rounded already -> ``[R, O]`` in ``dtype``."""
        if has_gpu_kernels(self.weight.device):
            return multiply_int8_gpu(rows, self.weight, self.scale_O, self.bias, dtype)
        return scaled(exact_sums(rows.byte_RI, self.weight), rows.scale_R, self.scale_O, self.bias, dtype)

    def extra_repr(self) -> str:
        """Shape and dtype."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, dtype={self.weight.dtype}"


class Int8Embedding(nn.Module):
    """An embedding in int8 with one scale per token. It shares its memory with a tied output head.

    Args:
        table: the rounded embedding, as a layer from hidden states to logits.
        dtype: of the vectors it returns.
    """

    def __init__(self, table: Int8Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", table.weight)
        self.register_buffer("scale_V", table.scale_O)
        self._dtype = dtype

    weight: Tensor
    scale_V: Tensor

    def put(self, start: int, weight_RD: Tensor) -> None:
        """See :meth:`Int8Linear.put`."""
        put_rounded(self.weight, self.scale_V, start, weight_RD)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 ``[...]`` -> ``[..., D]``."""
        flat_T = ids.flatten()
        x_TD = self.weight.index_select(0, flat_T).float() * self.scale_V.index_select(0, flat_T)[:, None]
        return x_TD.to(self._dtype).unflatten(0, ids.shape)
