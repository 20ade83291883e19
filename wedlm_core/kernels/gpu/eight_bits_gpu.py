"""Products of int8 rows with weights of 8 or 4 bits, scaled where they are summed, as Triton kernels.

A product is a sum of integers in int32, exact in whatever order it is taken. So a row's bits depend on no other row,
on no tile and on no other choice of :mod:`wedlm_core.model.int8_gpu`, and are those of every other device. Launch the
kernels without fused multiply-adds: they round once where others round twice.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.gpu.dependent_launch import wait_for_inputs
from wedlm_core.kernels.gpu.rounding_gpu import to_bfloat16


@triton.jit
def _tile(outputs, rows, BLOCK_O: tl.constexpr, BLOCK_R: tl.constexpr, BAND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The outputs and the rows of a program: BAND tiles of outputs go through all rows before the next do.

    So the weights of a band stay in the cache while the rows pass.
    """
    program = tl.program_id(0)
    tiles_o, tiles_r = tl.cdiv(outputs, BLOCK_O), tl.cdiv(rows, BLOCK_R)
    band = program // (BAND * tiles_r)
    within = program % (BAND * tiles_r)
    wide = tl.minimum(tiles_o - band * BAND, BAND)
    place_o = (band * BAND + within % wide) * BLOCK_O + tl.arange(0, BLOCK_O)
    place_r = (within // wide) * BLOCK_R + tl.arange(0, BLOCK_R)
    return place_o, place_r


@triton.jit
def _store(  # type: ignore[no-untyped-def]
    sums, place_o, place_r, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, outputs, rows, HAS_BIAS: tl.constexpr
):
    """``sums [BLOCK_R, BLOCK_O]`` times both scales, plus the bias, rounded as torch rounds."""
    real_o, real_r = place_o < outputs, place_r < rows
    row_scale = tl.load(row_scale_ptr + place_r, mask=real_r, other=0.0)
    scale = tl.load(scale_ptr + place_o, mask=real_o, other=0.0)
    y = sums.to(tl.float32) * (row_scale[:, None] * scale[None, :])
    if HAS_BIAS:
        y = y + tl.load(bias_ptr + place_o, mask=real_o, other=0.0).to(tl.float32)[None, :]
    if out_ptr.dtype.element_ty == tl.bfloat16:
        y = to_bfloat16(y)
    at = place_r[:, None].to(tl.int64) * outputs + place_o[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=real_r[:, None] & real_o[None, :])


@triton.jit(do_not_specialize=["rows"])
def multiply_int8(  # type: ignore[no-untyped-def]
    byte_ptr,
    row_scale_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    rows,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BAND: tl.constexpr,
    FULL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Program (tile of outputs and rows): ``out = (x W^T) * row_scale * scale + bias``.

    Args:
        byte_ptr: int8 ``[R, I]``, contiguous.
        row_scale_ptr: float32 ``[R]``.
        weight_ptr: int8 ``[O, I]``, contiguous.
        scale_ptr: float32 ``[O]``.
        bias_ptr: ``[O]``, any floating dtype; read only with HAS_BIAS.
        out_ptr: ``[R, O]``, contiguous, written.
        outputs: O.
        rows: R.
        INPUTS: I.
        HAS_BIAS: whether there is a bias.
        WEIGHTS_FIRST: whether the weights are the first factor of the tensor cores' product, whose tile has 64 rows
            at least; the rows are the second then, and 16 of them may be a tile.
        BLOCK_R: rows of a program.
        BLOCK_O: outputs of a program.
        BLOCK_I: inputs of a step.
        BAND: tiles of outputs that share the cache.
        FULL: whether all tiles have BLOCK_R rows; others are filled up with zeros.
        DEPENDENT: see :func:`.dependent_launch.wait_for_inputs`.
    """
    wait_for_inputs(DEPENDENT)
    place_o, place_r = _tile(outputs, rows, BLOCK_O, BLOCK_R, BAND)
    step = tl.arange(0, BLOCK_I)
    # Outputs after the last are computed from the last one, and not stored.
    weight_at = weight_ptr + tl.minimum(place_o, outputs - 1).to(tl.int64)[:, None] * INPUTS + step[None, :]
    byte_at = byte_ptr + place_r.to(tl.int64)[:, None] * INPUTS + step[None, :]
    there = (place_r < rows)[:, None]
    if WEIGHTS_FIRST:
        sums = tl.zeros((BLOCK_O, BLOCK_R), dtype=tl.int32)
    else:
        sums = tl.zeros((BLOCK_R, BLOCK_O), dtype=tl.int32)
    for at in range(0, INPUTS, BLOCK_I):
        if INPUTS % BLOCK_I == 0:
            weight = tl.load(weight_at + at)
        else:
            weight = tl.load(weight_at + at, mask=at + step[None, :] < INPUTS, other=0)
        if INPUTS % BLOCK_I == 0 and FULL:
            byte = tl.load(byte_at + at)
        elif INPUTS % BLOCK_I == 0:
            byte = tl.load(byte_at + at, mask=there, other=0)
        else:
            byte = tl.load(byte_at + at, mask=there & (at + step[None, :] < INPUTS), other=0)
        if WEIGHTS_FIRST:
            sums = tl.dot(weight, tl.trans(byte), sums, out_dtype=tl.int32)
        else:
            sums = tl.dot(byte, tl.trans(weight), sums, out_dtype=tl.int32)
    if WEIGHTS_FIRST:
        sums = tl.trans(sums)
    _store(sums, place_o, place_r, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, outputs, rows, HAS_BIAS)


@triton.jit(do_not_specialize=["rows"])
def multiply_int4(  # type: ignore[no-untyped-def]
    byte_ptr,
    row_scale_ptr,
    nibble_ptr,
    multiplier_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    rows,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    GROUPS: tl.constexpr,
    BAND: tl.constexpr,
    FULL: tl.constexpr,
):
    """Program (tile of outputs and rows): as :func:`multiply_int8`, with weights of 4 bits, expanded as they are read.

    A byte holds a group's weights j and j + 16. The low halves of some groups are one factor, the high halves another:
    so nothing is put in order but the rows' addresses.

    Args:
        byte_ptr: int8 ``[R, I]``, contiguous.
        row_scale_ptr: float32 ``[R]``.
        nibble_ptr: uint8 ``[O, I / 2]``, contiguous.
        multiplier_ptr: uint8 ``[O, I / 32]``, contiguous.
        scale_ptr: float32 ``[O]``.
        bias_ptr: ``[O]``, any floating dtype; read only with HAS_BIAS.
        out_ptr: ``[R, O]``, contiguous, written.
        outputs: O.
        rows: R.
        INPUTS: I, a multiple of 32.
        HAS_BIAS: whether there is a bias.
        BLOCK_R: rows of a program.
        BLOCK_O: outputs of a program.
        GROUPS: groups of 32 inputs of a step.
        BAND: tiles of outputs that share the cache.
        FULL: as for :func:`multiply_int8`.
    """
    place_o, place_r = _tile(outputs, rows, BLOCK_O, BLOCK_R, BAND)
    kept_o = tl.minimum(place_o, outputs - 1).to(tl.int64)
    step, group = tl.arange(0, 16 * GROUPS), tl.arange(0, GROUPS)
    nibble_at = nibble_ptr + kept_o[:, None] * (INPUTS // 2) + step[None, :]
    multiplier_at = multiplier_ptr + kept_o[:, None] * (INPUTS // 32) + group[None, :]
    low_at = byte_ptr + place_r.to(tl.int64)[:, None] * INPUTS + (step // 16 * 32 + step % 16)[None, :]
    there = (place_r < rows)[:, None]
    sums = tl.zeros((BLOCK_R, BLOCK_O), dtype=tl.int32)
    for at in range(0, INPUTS // 32, GROUPS):
        real = (at + step // 16 < INPUTS // 32)[None, :]
        if INPUTS // 32 % GROUPS == 0:
            nibble = tl.load(nibble_at + 16 * at)
            multiplier = tl.load(multiplier_at + at)
        else:
            nibble = tl.load(nibble_at + 16 * at, mask=real, other=0)
            multiplier = tl.load(multiplier_at + at, mask=(at + group < INPUTS // 32)[None, :], other=0)
        if INPUTS // 32 % GROUPS == 0 and FULL:
            low = tl.load(low_at + 32 * at)
            high = tl.load(low_at + 32 * at + 16)
        else:
            low = tl.load(low_at + 32 * at, mask=there & real, other=0)
            high = tl.load(low_at + 32 * at + 16, mask=there & real, other=0)
        shape: tl.constexpr = (BLOCK_O, GROUPS, 16)
        factor = tl.broadcast_to(multiplier.to(tl.int8)[:, :, None], shape).reshape(BLOCK_O, 16 * GROUPS)
        first = ((nibble & 15).to(tl.int8) - 8) * factor
        second = ((nibble >> 4).to(tl.int8) - 8) * factor
        sums = tl.dot(low, tl.trans(first), sums, out_dtype=tl.int32)
        sums = tl.dot(high, tl.trans(second), sums, out_dtype=tl.int32)
    _store(sums, place_o, place_r, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, outputs, rows, HAS_BIAS)
