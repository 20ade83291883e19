"""Rounding rows to 8-bit numbers in front of a product, one Triton kernel each."""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.gpu.dependent_launch import wait_for_inputs

_FP8_LARGEST = tl.constexpr(448.0)


@triton.jit
def to_e4m3(x):  # type: ignore[no-untyped-def]
    """The nearest float8_e4m3fn as a float32, ties to even, for |x| up to 448.

    The conversion that follows is then exact. Triton's interpreter by itself rounds without carrying over.
    """
    bits = x.to(tl.uint32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000
    normal = bits.to(tl.float32, bitcast=True)
    tiny = (x + 24576.0) - 24576.0  # float32 steps at 1.5 * 2^14 are 2^-9, those of e4m3 below 2^-6
    sign = x.to(tl.uint32, bitcast=True) & 0x80000000  # which the sum above loses where it is 0
    tiny = (tiny.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < 0.015625, tiny, normal)


@triton.jit
def to_bfloat16(x):  # type: ignore[no-untyped-def]
    """The nearest bfloat16 as a float32, ties to even. The conversion that follows is then exact.

    Triton's interpreter by itself cuts off.
    """
    bits = x.to(tl.uint32, bitcast=True)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(x == x, near, x)


@triton.jit
def stored(x, like, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """``x`` in the pool's dtype; for 8-bit floats the bytes of the clamped number."""
    if FP8:
        held = tl.clamp(x.to(tl.float32), -_FP8_LARGEST, _FP8_LARGEST)
        return to_e4m3(held).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    if like == tl.bfloat16 and x.dtype != like:
        x = to_bfloat16(x.to(tl.float32))
    return x.to(like)


@triton.jit
def round_rows(x_ptr, row_stride, byte_ptr, scale_ptr, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (row): ``x / scale`` in float8_e4m3fn; the scale maps the row's largest value to the largest number.

    Args:
        x_ptr: floating point ``[R, I]``, contiguous within a row.
        row_stride: elements between rows.
        byte_ptr: float8_e4m3fn ``[R, I]``, contiguous, written.
        scale_ptr: float32 ``[R]``, written.
        width: I.
        BLOCK: I or more, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + place, mask=place < width, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    scale = tl.maximum(tl.div_rn(largest, 448.0), 1.0e-12)
    share = to_e4m3(tl.div_rn(x, tl.zeros_like(x) + scale)).to(tl.float8e4nv)
    tl.store(byte_ptr + row * width + place, share, mask=place < width)
    tl.store(scale_ptr + row, scale)


@triton.jit
def size_bits(x):  # type: ignore[no-untyped-def]
    """The bits of ``|x|``, float32, as int32: in the order of the sizes, infinity and then NaN after all numbers.

    So their maximum needs no second reduction to find a NaN, and a warp takes it in one instruction.
    """
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def int8_scales(largest):  # type: ignore[no-untyped-def]
    """The factor of a row, and its scale, by the :func:`size_bits` of its largest number.

    The scale is NaN where that is a NaN or an infinity; the row's bytes mean nothing then.
    """
    size = largest.to(tl.float32, bitcast=True)
    top = tl.maximum(size, 1.0e-12)
    return tl.div_rn(127.0, top), tl.div_rn(top, 127.0) + (size - size)


@triton.jit
def nearest_int8(x):  # type: ignore[no-untyped-def]
    """The nearest integer, ties to even, of float32 between -127 and 127.

    Float32 steps at 1.5 * 2^23 are 1, and the last byte of a sum with it is the integer. A conversion takes longer.
    """
    return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def to_int8(x):  # type: ignore[no-untyped-def]
    """A row of float32, zeros after its end, in int8 at a scale of its own, and the scale.

    :func:`wedlm_core.kernels.rounding.rounded` is the oracle. A row with a NaN or an infinity has the scale NaN. Only
    without fused multiply-adds, which round once where the oracle rounds twice.
    """
    factor, scale = int8_scales(tl.max(size_bits(x), axis=0))
    return nearest_int8(x * factor), scale


@triton.jit
def round_rows_int8(x_ptr, row_stride, byte_ptr, scale_ptr, width, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (row): ``x`` in int8 at a scale of its own. Launch it without fused multiply-adds (:func:`to_int8`).

    Args:
        x_ptr: floating point ``[R, I]``, contiguous within a row.
        row_stride: elements between rows.
        byte_ptr: int8 ``[R, I]``, contiguous, written.
        scale_ptr: float32 ``[R]``, written.
        width: I.
        BLOCK: I or more, a power of two.
        DEPENDENT: see :func:`.dependent_launch.wait_for_inputs`.
    """
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + place, mask=place < width, other=0.0).to(tl.float32)
    whole, scale = to_int8(x)
    tl.store(byte_ptr + row * width + place, whole, mask=place < width)
    tl.store(scale_ptr + row, scale)
