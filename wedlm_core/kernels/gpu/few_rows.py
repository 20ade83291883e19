"""Products of few rows with weights of 16 bits: a Triton kernel that reads each weight once, in long pieces.

Few rows are bound by reading weights. Libraries choose a kernel by the sizes of a product; for up to sixteen rows and
the sizes of decoder layers their choice takes up to twice as long (by hand on an H200:
``benchmarks/results/gpu.md``).
Importing this module imports Triton.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from wedlm_core.devices import on_device
from wedlm_core.kernels.gpu.dependent_launch import dependent, wait_for_inputs

FEW_ROWS = 16  # of a tile: tensor cores have none smaller
_OUTPUTS, _INPUTS = 64, 256  # of a tile
_MOST_STAGES = 4


@triton.jit(do_not_specialize=["rows"])
def multiply_few_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    rows,
    inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Program (BLOCK_O outputs of all rows): ``out [R, O] = x [R, I] W^T + bias``; I is a multiple of BLOCK_I.

    The weights are the first factor of the tensor cores' product: on Hopper it has 64 rows at least.
    """
    wait_for_inputs(DEPENDENT)
    place_o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    place_r, step = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_I)
    # Outputs after the last are computed from the last one, and not stored.
    weight_at = weight_ptr + tl.minimum(place_o, outputs - 1).to(tl.int64)[:, None] * inputs + step[None, :]
    x_at = x_ptr + place_r[:, None] * inputs + step[None, :]
    there = (place_r < rows)[:, None]
    sums = tl.zeros((BLOCK_O, BLOCK_R), dtype=tl.float32)
    for at in range(0, inputs, BLOCK_I):
        weight = tl.load(weight_at + at)
        x = tl.load(x_at + at, mask=there, other=0.0)
        sums = tl.dot(weight, tl.trans(x), sums, input_precision="ieee")
    real = place_o < outputs
    if HAS_BIAS:
        sums += tl.load(bias_ptr + place_o, mask=real, other=0.0).to(tl.float32)[:, None]
    out_at = out_ptr + place_r[:, None] * outputs + place_o[None, :]
    tl.store(out_at, tl.trans(sums).to(out_ptr.dtype.element_ty), mask=there & real[None, :])


def takes_few(rows: int, inputs: int) -> bool:
    """Whether a product is of few rows, and of so many inputs that the kernel reads no more."""
    return 0 < rows <= FEW_ROWS and inputs % _INPUTS == 0


def multiply_few(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """``x W^T + b``, ``[R, O]``, summed in float32; of one dtype, contiguous, of sizes that :func:`takes_few` says."""
    assert x_RI.is_contiguous()
    assert weight_OI.is_contiguous()
    (rows, inputs), outputs = x_RI.shape, weight_OI.shape[0]
    assert takes_few(rows, inputs), f"{rows} rows of {inputs} inputs: the kernel takes other sizes"
    out_RO = x_RI.new_empty(rows, outputs)
    with on_device(x_RI.device):
        multiply_few_rows[(triton.cdiv(outputs, _OUTPUTS),)](
            x_RI, weight_OI, weight_OI if bias_O is None else bias_O, out_RO, outputs, rows, inputs,
            HAS_BIAS=bias_O is not None, BLOCK_R=FEW_ROWS, BLOCK_O=_OUTPUTS,
            BLOCK_I=_INPUTS, num_warps=4, num_stages=_stages(x_RI.device, x_RI.element_size()),
            **dependent(x_RI.device),
        )  # fmt: skip
    return out_RO


@functools.cache
def _stages(device: torch.device, itemsize: int) -> int:
    """Stages of the software pipeline that fit in a thread block's shared memory."""
    memory = 1 << 30  # interpreted: any
    if device.type == "cuda":  # a thread block may use all of its multiprocessor but 1 KiB
        memory = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024
    return max(1, min(_MOST_STAGES, memory // ((_OUTPUTS + FEW_ROWS) * _INPUTS * itemsize)))
