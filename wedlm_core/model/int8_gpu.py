"""Products of int8 rows and exact weights on a GPU: launches of the kernels, and their tiles.

:func:`wedlm_core.kernels.rounding.rounded` and the plain arithmetic of :class:`wedlm_core.model.int8.Int8Linear` are
their oracles, bit for bit. As torch operations, the work around a product is some fourteen kernels, which in a small
forward take longer than the product.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.devices import on_device
from wedlm_core.kernels.rounding import RoundedRows

_FEW_OUTPUTS = 4096  # 128 tiles of 32
_MANY_OUTPUTS = 16384  # a tile of 128 for each processor of a large device
_MANY_TILES = 256  # two for each processor


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a product is cut; see :mod:`wedlm_core.kernels.gpu.eight_bits_gpu`.

    Attributes:
        rows, outputs, inputs: of a tile.
        weights_first: whether weights are the first factor.
        band: tiles of outputs that share the cache.
        warps, stages: of a program.
    """

    rows: int
    outputs: int
    inputs: int
    weights_first: bool = False
    band: int = 8
    warps: int = 4
    stages: int = 4


_ANY = 1 << 62
_UP_TO_256_ROWS: Sequence[tuple[int, int, Tiles]] = (
    (16, _MANY_OUTPUTS - 1, Tiles(rows=16, outputs=64, inputs=256, weights_first=True, stages=5)),
    (16, _ANY, Tiles(rows=16, outputs=128, inputs=128, weights_first=True, warps=8)),
    (32, _MANY_OUTPUTS - 1, Tiles(rows=32, outputs=64, inputs=256, weights_first=True, stages=5)),
    (32, _ANY, Tiles(rows=32, outputs=64, inputs=128, weights_first=True)),
    (64, _FEW_OUTPUTS, Tiles(rows=64, outputs=32, inputs=256, stages=5)),
    (64, _MANY_OUTPUTS - 1, Tiles(rows=64, outputs=64, inputs=256, weights_first=True, stages=5)),
    (64, _ANY, Tiles(rows=64, outputs=64, inputs=128)),
    (128, _MANY_OUTPUTS - 1, Tiles(rows=64, outputs=64, inputs=256, weights_first=True, stages=5)),
    (128, _ANY, Tiles(rows=128, outputs=64, inputs=128, warps=8, stages=3)),
    # Of two tiles of 128 rows the last would be half empty.
    (192, _FEW_OUTPUTS, Tiles(rows=64, outputs=64, inputs=128, stages=5)),
    (192, _MANY_OUTPUTS - 1, Tiles(rows=64, outputs=128, inputs=128, weights_first=True)),
    (192, _ANY, Tiles(rows=128, outputs=128, inputs=128, warps=8, stages=3, band=2)),
    (256, _FEW_OUTPUTS, Tiles(rows=64, outputs=64, inputs=128, stages=5)),
)
"""The most rows and the most outputs of a product, and its tiles: the first line that fits counts."""


def tiles_of(rows: int, outputs: int) -> Tiles:
    """The tiles of a product of so many rows and outputs: the fastest of some hundred on an H200.

    Few rows are bound by reading weights: small tiles, so that each processor has several, or long ones where there
    are many outputs. Many rows are bound by the tensor cores: large tiles, as long as no processor waits; where each
    has more than two, in fewer stages, so that three run beside each other.
    """
    for most_rows, most_outputs, tiles in _UP_TO_256_ROWS:
        if rows <= most_rows and outputs <= most_outputs:
            return tiles
    high = -(-rows // 128)
    if high > 2 and high * -(-outputs // 128) >= _MANY_TILES:
        return Tiles(rows=128, outputs=128, inputs=128, warps=8, stages=3, band=2)
    return Tiles(rows=128, outputs=64, inputs=128, warps=8, stages=3 if high * -(-outputs // 64) > _MANY_TILES else 4)


def kinds_of_tiles() -> list[Tiles]:
    """All tiles that :func:`tiles_of` chooses for any product."""
    counts = [most + 1 for most, _, _ in _UP_TO_256_ROWS]
    outputs = (1, _FEW_OUTPUTS + 1, _MANY_OUTPUTS)
    return list(dict.fromkeys(tiles_of(count, width) for count in (1, *counts, 1 << 12) for width in outputs))


def _int4_tiles_of(rows: int, *, hopper: bool = True) -> Tiles:
    """Expanding weights takes the time: tiles with few of them at once.

    Tensor cores of Hopper read factors from shared memory. Others read registers, too few for the larger tiles.
    """
    if rows <= 32:
        return Tiles(rows=16 if rows <= 16 else 32, outputs=32 if rows <= 16 else 64, inputs=128, stages=4)
    if not hopper:
        return Tiles(rows=64 if rows <= 64 else 128, outputs=64, inputs=128, warps=4 if rows <= 64 else 8, stages=3)
    if rows <= 64:
        return Tiles(rows=64, outputs=64, inputs=256, stages=4)
    return Tiles(rows=128, outputs=128, inputs=256, warps=8, stages=2)


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    """Whether a GPU is one; the interpreter counts as one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9


def rounded_gpu(x_RI: Tensor) -> RoundedRows:
    """See :func:`wedlm_core.kernels.rounding.rounded`; the scale of a row that is no number is NaN."""
    from wedlm_core.kernels.gpu.dependent_launch import dependent
    from wedlm_core.kernels.gpu.rounding_gpu import round_rows_int8

    rows, width = x_RI.shape
    if x_RI.stride(1) != 1:
        x_RI = x_RI.contiguous()
    byte_RI = torch.empty(rows, width, dtype=torch.int8, device=x_RI.device)
    scale_R = torch.empty(rows, device=x_RI.device)
    with on_device(x_RI.device):
        block = 1 << (width - 1).bit_length()
        round_rows_int8[(rows,)](
            x_RI, x_RI.stride(0), byte_RI, scale_R, width, BLOCK=block, num_warps=8, enable_fp_fusion=False,
            **dependent(x_RI.device),
        )  # fmt: skip
    return RoundedRows(byte_RI, scale_R)


def multiply_int8_gpu(
    rows: RoundedRows,
    weight_OI: Tensor,
    scale_O: Tensor,
    bias_O: Tensor | None,
    dtype: torch.dtype,
    tiles: Tiles | None = None,
) -> Tensor:
    """``x W^T + b`` of rounded rows and int8 weights, ``[R, O]`` in ``dtype``.

    Args:
        rows: R rows of I numbers.
        weight_OI: int8, contiguous.
        scale_O: float32, of the weights.
        bias_O: any floating dtype, or None.
        dtype: of the result.
        tiles: how the product is cut; the result does not depend on it.
    """
    from wedlm_core.kernels.gpu.dependent_launch import dependent
    from wedlm_core.kernels.gpu.eight_bits_gpu import multiply_int8

    count, (outputs, inputs) = rows.byte_RI.shape[0], weight_OI.shape
    cut = tiles or tiles_of(count, outputs)
    out_RO = torch.empty(count, outputs, dtype=dtype, device=weight_OI.device)
    with on_device(weight_OI.device):
        multiply_int8[(-(-outputs // cut.outputs) * -(-count // cut.rows),)](
            rows.byte_RI, rows.scale_R, weight_OI, scale_O, scale_O if bias_O is None else bias_O, out_RO,
            outputs, count, INPUTS=inputs, HAS_BIAS=bias_O is not None, WEIGHTS_FIRST=cut.weights_first,
            BLOCK_R=cut.rows, BLOCK_O=cut.outputs, BLOCK_I=cut.inputs, BAND=cut.band,
            FULL=count % cut.rows == 0, num_warps=cut.warps, num_stages=cut.stages, enable_fp_fusion=False,
            **dependent(weight_OI.device),
        )  # fmt: skip
    return out_RO


def multiply_int4_gpu(
    rows: RoundedRows,
    nibble_OJ: Tensor,
    multiplier_OG: Tensor,
    scale_O: Tensor,
    bias_O: Tensor | None,
    dtype: torch.dtype,
    tiles: Tiles | None = None,
) -> Tensor:
    """As :func:`multiply_int8_gpu`, with weights of :class:`wedlm_core.model.int4.Int4Linear`."""
    from wedlm_core.kernels.gpu.eight_bits_gpu import multiply_int4

    count, (outputs, half) = rows.byte_RI.shape[0], nibble_OJ.shape
    cut = tiles or _int4_tiles_of(count, hopper=_is_hopper(nibble_OJ.device))
    out_RO = torch.empty(count, outputs, dtype=dtype, device=nibble_OJ.device)
    with on_device(nibble_OJ.device):
        multiply_int4[(-(-outputs // cut.outputs) * -(-count // cut.rows),)](
            rows.byte_RI, rows.scale_R, nibble_OJ, multiplier_OG, scale_O, scale_O if bias_O is None else bias_O,
            out_RO, outputs, count, INPUTS=2 * half, HAS_BIAS=bias_O is not None,
            BLOCK_R=cut.rows, BLOCK_O=cut.outputs, GROUPS=cut.inputs // 32, BAND=cut.band,
            FULL=count % cut.rows == 0, num_warps=cut.warps, num_stages=cut.stages, enable_fp_fusion=False,
        )  # fmt: skip
    return out_RO
