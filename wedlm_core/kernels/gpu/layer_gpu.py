"""The operations of a decoder layer between matrix products, as Triton kernels: norms, rotary embedding, gate.

A row's result depends on that row alone. Sums are in float32, and results are rounded to the tensors' dtype
at the same points as in the plain layers (:mod:`wedlm_core.model.decoder`). Importing this module imports Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from wedlm_core.kernels.gpu.dependent_launch import dependent, wait_for_inputs
from wedlm_core.kernels.gpu.rounding_gpu import int8_scales, nearest_int8, size_bits, stored, to_int8
from wedlm_core.kernels.rounding import RoundedRows

_BLOCK = 1024


@triton.jit
def _add_rms_norm(  # type: ignore[no-untyped-def]
    x, delta, weight, out, scales, eps, SIZE: tl.constexpr, SIZE_P: tl.constexpr, ADD: tl.constexpr,
    ROUND: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One row: ``x += delta``, then its norm to ``out``, with ROUND in int8 and its scale to ``scales``."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * SIZE
    place = tl.arange(0, SIZE_P)
    real = place < SIZE
    dtype = x.dtype.element_ty
    wide = tl.load(x + row + place, mask=real, other=0.0).to(tl.float32)
    # Read before the sum below, which hides its latency: it is seldom in the cache.
    factor = tl.load(weight + place, mask=real, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(delta + row + place, mask=real, other=0.0).to(tl.float32)
        total = (wide + more).to(dtype)
        tl.store(x + row + place, total, mask=real)
        wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    scaled = (wide * scale).to(dtype).to(tl.float32)
    normed = (factor * scaled).to(dtype)
    if ROUND:
        normed, row_scale = to_int8(normed.to(tl.float32))
        tl.store(scales + tl.program_id(0), row_scale)
    tl.store(out + row + place, normed, mask=real)


@triton.jit
def _normed(first, second, weight, place, real, eps, HALF: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Root-mean-square norm of one attention head, given in halves."""
    squares = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)
    low = tl.load(weight + place, mask=real, other=0.0).to(tl.float32)
    high = tl.load(weight + HALF + place, mask=real, other=0.0).to(tl.float32)
    first = (low * (first * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    second = (high * (second * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return first, second


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["positions", "entries"])
def _norm_rope(  # type: ignore[no-untyped-def]
    qkv,
    positions,
    cos,
    sin,
    q_weight,
    k_weight,
    q_out,
    k_out,
    v_out,
    entries,
    num_entries,
    row_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_P: tl.constexpr,
    NORM: tl.constexpr,
    WRITE: tl.constexpr,
    FP8: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One attention head of one row: the norm if the model has one, then the rotation.

    With WRITE, ``k_out`` and ``v_out`` are a pool, and a program of a key head stores its row's keys and values there.
    """
    wait_for_inputs(DEPENDENT)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, HALF_P)
    real = place < HALF
    dtype = qkv.dtype.element_ty
    position = tl.load(positions + row).to(tl.int64)
    source = qkv + row * row_stride + head * 2 * HALF + place
    first = tl.load(source, mask=real, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
    if WRITE:
        value, key = source + KV_HEADS * 2 * HALF, real & (head >= HEADS)
        entry = tl.load(entries + row)
        v_first, v_second = tl.load(value, mask=key), tl.load(value + HALF, mask=key)
    # The second of two reads that wait for each other: it begins before the norm.
    angle = position * HALF + place
    c = tl.load(cos + angle, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=real, other=0.0).to(tl.float32)
    if NORM:
        if head < HEADS:
            first, second = _normed(first, second, q_weight, place, real, eps, HALF, dtype)
        else:
            first, second = _normed(first, second, k_weight, place, real, eps, HALF, dtype)
    low = ((first * c).to(dtype).to(tl.float32) - (second * s).to(dtype).to(tl.float32)).to(dtype)
    high = ((second * c).to(dtype).to(tl.float32) + (first * s).to(dtype).to(tl.float32)).to(dtype)
    if head < HEADS:
        target = q_out + (row * HEADS + head) * 2 * HALF + place
        tl.store(target, low, mask=real)
        tl.store(target + HALF, high, mask=real)
    elif WRITE:
        if entry >= 0:
            target = ((head - HEADS).to(tl.int64) * num_entries + entry) * 2 * HALF + place
            kind = k_out.dtype.element_ty
            tl.store(k_out + target, stored(low, kind, FP8), mask=real)
            tl.store(k_out + target + HALF, stored(high, kind, FP8), mask=real)
            tl.store(v_out + target, stored(v_first, kind, FP8), mask=real)
            tl.store(v_out + target + HALF, stored(v_second, kind, FP8), mask=real)
    else:
        target = k_out + (row * KV_HEADS + head - HEADS) * 2 * HALF + place
        tl.store(target, low, mask=real)
        tl.store(target + HALF, high, mask=real)


@triton.jit
def _gated(gate_up, place, SIZE: tl.constexpr, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    """``silu(gate) * up`` of a row at ``place``, in its dtype; zeros after the end, unless FULL says it ends there."""
    dtype = gate_up.dtype.element_ty
    if FULL:
        gate, up = tl.load(gate_up + place), tl.load(gate_up + SIZE + place)
    else:
        gate = tl.load(gate_up + place, mask=place < SIZE, other=0.0)
        up = tl.load(gate_up + SIZE + place, mask=place < SIZE, other=0.0)
    gate = gate.to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (active * up.to(tl.float32)).to(dtype)


@triton.jit
def _silu_mul(  # type: ignore[no-untyped-def]
    gate_up, out, scales, SIZE: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, ROUND: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A block of one row: ``silu(gate) * up``; with ROUND a row, as BLOCK and REST numbers, in int8 and its scale.

    A processor computes a row's exponentials one after the other: two powers of two leave few places after its end.
    """
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    gate_up += row * 2 * SIZE
    out += row * SIZE
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if not ROUND:
        tl.store(out + place, _gated(gate_up, place, SIZE, SIZE % BLOCK == 0), mask=place < SIZE)
        return
    product = _gated(gate_up, place, SIZE, True).to(tl.float32)
    largest = tl.max(size_bits(product), axis=0)
    if REST > 0:
        rest = BLOCK + tl.arange(0, REST)
        more = _gated(gate_up, rest, SIZE, BLOCK + REST == SIZE).to(tl.float32)
        largest = tl.maximum(largest, tl.max(size_bits(more), axis=0))
    factor, row_scale = int8_scales(largest)
    tl.store(scales + row, row_scale)
    tl.store(out + place, nearest_int8(product * factor))
    if REST > 0:
        tl.store(out + rest, nearest_int8(more * factor), mask=rest < SIZE)


def add_rms_norm(x_TD: Tensor, delta_TD: Tensor | None, weight_D: Tensor, eps: float) -> Tensor:
    """Add ``delta`` (if given) to ``x`` in place and return the norm of the sum, ``[T, D]``."""
    out_TD = torch.empty_like(x_TD)
    _launch_norm(x_TD, delta_TD, weight_D, eps, out_TD, None)
    return out_TD


def add_rms_norm_int8(x_TD: Tensor, delta_TD: Tensor | None, weight_D: Tensor, eps: float) -> RoundedRows:
    """:func:`add_rms_norm`, with the norm rounded to int8."""
    rows = RoundedRows(torch.empty_like(x_TD, dtype=torch.int8), x_TD.new_empty(x_TD.shape[0], dtype=torch.float32))
    _launch_norm(x_TD, delta_TD, weight_D, eps, rows.byte_RI, rows.scale_R)
    return rows


def _launch_norm(
    x_TD: Tensor, delta_TD: Tensor | None, weight_D: Tensor, eps: float, out_TD: Tensor, scale_T: Tensor | None
) -> None:
    assert x_TD.is_contiguous()
    assert delta_TD is None or (delta_TD.is_contiguous() and delta_TD.shape == x_TD.shape)
    rows, size = x_TD.shape
    block = triton.next_power_of_2(size)
    _add_rms_norm[(rows,)](
        x_TD, x_TD if delta_TD is None else delta_TD, weight_D, out_TD, x_TD if scale_T is None else scale_T, eps,
        SIZE=size, SIZE_P=block, ADD=delta_TD is not None, ROUND=scale_T is not None,
        num_warps=8 if block >= 2048 else 4,
        enable_fp_fusion=scale_T is None, **dependent(x_TD.device),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The norms and the rotary embedding of a layer's queries and keys.

    Attributes:
        position_T: int64 logical positions.
        cos, sin: ``[P, Dh / 2]``, in the dtype of the projection.
        weights: weights of the query and the key norm; None if the model has none.
        eps: epsilon of these norms.
        heads, kv_heads, head_dim: H, Hkv and Dh.
    """

    position_T: Tensor
    cos: Tensor
    sin: Tensor
    weights: tuple[Tensor, Tensor] | None
    eps: float
    heads: int
    kv_heads: int
    head_dim: int


def norm_rope(qkv_TC: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Split the fused qkv projection; norm and rotate queries and keys.

    Args:
        qkv_TC: ``[T, (H + 2 Hkv) * Dh]``.
        rotation: of this layer.

    Returns:
        ``q [T, H, Dh]`` and ``k [T, Hkv, Dh]``, contiguous, and ``v [T, Hkv, Dh]``, a view of ``qkv_TC``.
    """
    k_THD = qkv_TC.new_empty(qkv_TC.shape[0], rotation.kv_heads, rotation.head_dim)
    q_THD = _launch_rope(qkv_TC, rotation, k_THD, k_THD, None)
    value = rotation.heads + rotation.kv_heads
    return q_THD, k_THD, qkv_TC.unflatten(-1, (-1, rotation.head_dim))[:, value:]


def norm_rope_write(qkv_TC: Tensor, rotation: Rotation, k_pool: Tensor, v_pool: Tensor, entry_T: Tensor) -> Tensor:
    """:func:`norm_rope` and :meth:`wedlm_core.kv.pool.KVPool.write_entries` at once; returns the queries."""
    return _launch_rope(qkv_TC, rotation, k_pool, v_pool, entry_T)


def _launch_rope(qkv_TC: Tensor, rotation: Rotation, k: Tensor, v: Tensor, entry_T: Tensor | None) -> Tensor:
    assert qkv_TC.stride(1) == 1
    assert rotation.cos.is_contiguous()
    assert rotation.sin.is_contiguous()
    assert rotation.position_T.is_contiguous()
    rows, half = qkv_TC.shape[0], rotation.head_dim // 2
    q_THD = qkv_TC.new_empty(rows, rotation.heads, rotation.head_dim)
    q_weight, k_weight = rotation.weights or (rotation.cos, rotation.cos)
    _norm_rope[(rows, rotation.heads + rotation.kv_heads)](
        qkv_TC, rotation.position_T, rotation.cos, rotation.sin, q_weight, k_weight, q_THD, k, v,
        rotation.position_T if entry_T is None else entry_T, k.shape[0] // rotation.kv_heads, qkv_TC.stride(0),
        rotation.eps, HEADS=rotation.heads, KV_HEADS=rotation.kv_heads, HALF=half,
        HALF_P=triton.next_power_of_2(half), NORM=rotation.weights is not None, WRITE=entry_T is not None,
        FP8=k.dtype == torch.uint8, num_warps=1,
        **dependent(qkv_TC.device),
        enable_fp_fusion=False,  # a fused multiply-add would round once where the plain layers round twice
    )  # fmt: skip
    return q_THD


def silu_mul(gate_up_TC: Tensor) -> Tensor:
    """``[T, 2 I]`` (gate, then up) -> ``silu(gate) * up``, ``[T, I]``."""
    assert gate_up_TC.is_contiguous()
    rows, size = gate_up_TC.shape[0], gate_up_TC.shape[1] // 2
    out_TI = gate_up_TC.new_empty(rows, size)
    _silu_mul[(rows, triton.cdiv(size, _BLOCK))](
        gate_up_TC, out_TI, out_TI, SIZE=size, BLOCK=_BLOCK, REST=0, ROUND=False, num_warps=4,
        **dependent(gate_up_TC.device),
    )  # fmt: skip
    return out_TI


def silu_mul_int8(gate_up_TC: Tensor) -> RoundedRows:
    """:func:`silu_mul`, rounded to int8."""
    assert gate_up_TC.is_contiguous()
    rows, size = gate_up_TC.shape[0], gate_up_TC.shape[1] // 2
    found = RoundedRows(
        gate_up_TC.new_empty(rows, size, dtype=torch.int8), gate_up_TC.new_empty(rows, dtype=torch.float32)
    )
    block = 1 << (size.bit_length() - 1)
    rest = triton.next_power_of_2(size - block) if size > block else 0
    _silu_mul[(rows, 1)](
        gate_up_TC, found.byte_RI, found.scale_R, SIZE=size, BLOCK=block, REST=rest, ROUND=True,
        num_warps=16 if size > 4096 else 8 if size > 1024 else 4, enable_fp_fusion=False,
        **dependent(gate_up_TC.device),
    )  # fmt: skip
    return found
