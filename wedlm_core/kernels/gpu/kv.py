"""Store a forward's keys and values in the paged KV pool: one asynchronous Triton kernel for both.

Importing this module imports Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wedlm_core.kernels.gpu.rounding_gpu import to_bfloat16, to_e4m3

_FP8_LARGEST = tl.constexpr(448.0)


@triton.jit
def stored(x, like, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """``x`` in the pool's dtype; for 8-bit floats the bytes of the clamped number."""
    if FP8:
        held = tl.clamp(x.to(tl.float32), -_FP8_LARGEST, _FP8_LARGEST)
        return to_e4m3(held).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    if like == tl.bfloat16 and x.dtype != like:
        x = to_bfloat16(x.to(tl.float32))
    return x.to(like)


@triton.jit(do_not_specialize_on_alignment=["entries"])
def _write(  # type: ignore[no-untyped-def]
    k_in,
    v_in,
    k_pool,
    v_pool,
    entries,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    num_entries,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEADS_P: tl.constexpr,
    DIM_P: tl.constexpr,
    FP8: tl.constexpr,
):
    """Store one row of the forward: keys and values of all heads."""
    row = tl.program_id(0).to(tl.int64)
    entry = tl.load(entries + row)
    if entry < 0:
        return
    head = tl.arange(0, HEADS_P)[:, None]
    place = tl.arange(0, DIM_P)[None, :]
    real = (head < HEADS) & (place < DIM)
    target = (head.to(tl.int64) * num_entries + entry) * DIM + place
    k = tl.load(k_in + row * k_row_stride + head * k_head_stride + place, mask=real)
    v = tl.load(v_in + row * v_row_stride + head * v_head_stride + place, mask=real)
    tl.store(k_pool + target, stored(k, k_pool.dtype.element_ty, FP8), mask=real)
    tl.store(v_pool + target, stored(v, v_pool.dtype.element_ty, FP8), mask=real)


def write_kv(
    k_pool: Tensor,
    v_pool: Tensor,
    heads: int,
    entry_T: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
) -> None:
    """Store ``k, v [T, Hkv, Dh]`` at the int64 entries ``entry_T``; a negative entry marks a padding row.

    ``k_pool`` and ``v_pool`` are ``[Hkv * num_entries, Dh]``, head-major, and uint8 if they hold 8-bit
    floats.
    """
    assert k_THD.stride(-1) == v_THD.stride(-1) == 1, "heads must be contiguous"
    dim = k_pool.shape[-1]
    _write[(entry_T.shape[0],)](
        k_THD, v_THD, k_pool, v_pool, entry_T,
        k_THD.stride(0), k_THD.stride(1), v_THD.stride(0), v_THD.stride(1), k_pool.shape[0] // heads,
        HEADS=heads,
        DIM=dim,
        HEADS_P=triton.next_power_of_2(heads),
        DIM_P=triton.next_power_of_2(dim),
        FP8=k_pool.dtype == torch.uint8,
    )  # fmt: skip


@triton.jit
def _double(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(out + place, 2 * tl.load(x + place))


def twice(x: Tensor) -> Tensor:
    """``2 * x`` for a power-of-two number of elements: the smallest kernel, to test whether kernels run."""
    out = torch.empty_like(x)
    _double[(1,)](x, out, BLOCK=x.numel())
    return out
