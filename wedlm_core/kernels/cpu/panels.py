"""Products of rows and packed weights, ``out = x @ weight.T + bias``, in float32, bfloat16 and int8.

A weight ``[O, I]`` is packed into panels of 64 outputs, each of two halves of 32: ``[O / 64, 2, depth, 32]`` units of
four bytes (digits of four groups of 16, see :mod:`.digits`). A unit is what one instruction multiplies in a lane: one
float32, two bfloat16 or four int8 along the inputs (``depth`` units in all). So few rows read the weights once, at the
speed of memory, and many rows keep a half in the L2 cache. While tiles of rows are multiplied with a half, the next one
is fetched, a part of it by each tile: so memory is read all the time, not only while the first tile of a half waits for
it.

Every result is one chain of additions in the order of the inputs (of whole units), whatever rows are multiplied
together. So a row's bits depend neither on the other rows nor on the threads. Sums of int8 are exact in int32 and
independent of the order anyway.

Matrices are given by the address of their first element and the bytes from one row to the next.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.amx import BLOCK_ROWS, STEP, block_multiplier, has_amx, kept_sums, release
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.digit_products import ROWS, multiply_digits
from wedlm_core.kernels.cpu.digits import BLOCK_INPUTS, TILE
from wedlm_core.kernels.cpu.emit import call, fetch, loop, pointer, spread
from wedlm_core.kernels.cpu.tile import address
from wedlm_core.kernels.cpu.vector import LANES
from wedlm_core.kernels.cpu.views import floats_at

__all__ = ["PANEL", "depth_step", "features", "has_digits", "multiply_panels", "numbers_here", "numeric_kind", "pieces",
           "row_step", "tile_rows"]  # fmt: skip

PANEL = 64
"""Outputs of a panel."""
_HALF = 32
_LINE_BYTES, _AHEAD_BYTES = 64, 2048  # of weights that are fetched as they are read: the processor stops at each page
_FEW_ROWS = 6  # of int8 that vectors multiply faster than matrix units, or as fast
_INT, _INDEX, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_intrinsic: Any = intrinsic


class _BFloat(ir.Type):  # llvmlite has none
    """The 16-bit float that the instruction takes."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


@functools.cache
def features() -> frozenset[str]:
    """Names of this CPU's instruction sets, as LLVM has them."""
    return frozenset(name for name, there in llvmlite.binding.get_host_cpu_features().items() if there)


def numbers_here() -> tuple[str, ...]:
    """The numbers that panels can hold on this CPU: names for :func:`multiply_panels`, the fastest of each kind first.

    "int8" adds four products in one instruction (VNNI); "int16" widens int8 and adds pairs in 32 bits (AVX2). Those
    that end in "_amx" are for matrix units: int8 from a few rows on, bfloat16 for any number of rows, as its sums are
    taken in another order (:mod:`.amx`), and float32 by its digits (:mod:`.digits`).
    """
    wide = {"avx512f", "avx512bw"} <= features()
    found = ["float32_amx", "float32"] if wide and "avx512vnni" in features() and has_amx() else ["float32"]
    if wide and "avx512bf16" in features() and has_amx():
        found.append("bfloat16_amx")
    if wide and "avx512bf16" in features():
        found.append("bfloat16")
    if wide and "avx512vnni" in features() and has_amx():
        found.append("int8_amx")
    if wide and "avx512vnni" in features():
        found.append("int8")
    if "avx2" in features():
        found.append("int16")
    return tuple(found)


def _has_wide_vectors() -> bool:
    return "avx512f" in features()


def numeric_kind(numbers: str) -> str:
    """What the numbers are, whatever multiplies them: a name that may lack "_amx"."""
    return numbers.removesuffix("_amx")


def has_digits(numbers: str) -> bool:
    """Whether weights and rows are held as digits (:mod:`.digits`)."""
    return numbers == "float32_amx"


def depth_step(numbers: str) -> int:
    """Rows and panels are padded to a multiple of so many units of four bytes."""
    if has_digits(numbers):
        return BLOCK_INPUTS
    return STEP if numbers.endswith("_amx") else 1


def row_step(numbers: str) -> int:
    """Rows are held in whole blocks of so many."""
    return TILE if has_digits(numbers) else 1


def tile_rows(numbers: str) -> int:
    """Most rows that are multiplied together."""
    if has_digits(numbers):
        return ROWS
    if numbers.endswith("_amx"):
        return BLOCK_ROWS
    return 12 if _has_wide_vectors() else 3


def _pair_rows() -> int:
    """Most rows with which both halves of a panel are multiplied together."""
    return 6 if _has_wide_vectors() else 1


def _vector(kind: Any, lanes: int = LANES) -> Any:
    return ir.VectorType(kind, lanes)


def _pairs(builder: Any, a: Any, b: Any) -> Any:
    """The sums of adjacent products of 32 int16, as 16 int32."""
    if {"avx512bw"} <= features():
        return call(builder, "llvm.x86.avx512.pmaddw.d.512", _vector(_INT), a, b)
    halves = []
    for at in (0, LANES):
        places = _vector(_INT)(list(range(at, at + LANES)))
        low = [builder.shuffle_vector(one, one, places) for one in (a, b)]
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", _vector(_INT, LANES // 2), *low))
    return builder.shuffle_vector(*halves, _vector(_INT)(list(range(LANES))))


def _accumulate(builder: Any, numbers: str, factor: Any, part: Any, before: Any) -> Any:
    """``before + factor * part``: a unit of a row, in all lanes, times a unit of each of 16 outputs."""
    if numbers == "float32":
        return call(builder, f"llvm.fma.v{LANES}f32", _vector(_FLOAT), factor, part, before)
    if numbers == "bfloat16":
        pair = _vector(_BFloat(), 2 * LANES)
        operands = before, builder.bitcast(factor, pair), builder.bitcast(part, pair)
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _vector(_FLOAT), *operands)
    if numbers == "int8":  # weights are the unsigned factor, so that the row's may come from memory
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", _vector(_INT), before, part, factor)
    wide = _vector(ir.IntType(16), 2 * LANES)
    return builder.add(before, _pairs(builder, builder.bitcast(factor, wide), builder.sext(part, wide)))


def _tile(numbers: str, rows: int, halves: int) -> Any:
    """The micro-kernel of ``rows x (32 * halves)`` outputs, as an intrinsic.

    For unit k it fetches the bytes at ``ahead + k * ahead_step``, as many as it reads of weights.
    """
    whole = numbers in ("int8", "int16")
    unit = _FLOAT if numbers == "float32" else _INT
    # A vector of weights has the units of 16 outputs; int16 are stored as int8.
    stored = _vector(ir.IntType(8), 2 * LANES) if numbers == "int16" else _vector(unit)
    vector_bytes = 2 * LANES if numbers == "int16" else 4 * LANES
    vectors = [(h, v) for h in range(halves) for v in range(_HALF // LANES)]
    zero = _vector(_INT)([0] * LANES) if whole else _vector(_FLOAT)([0.0] * LANES)

    @_intrinsic
    def tile(  # type: ignore[no-untyped-def]
        typing_context, x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum
    ):
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_step, panel, depth, ahead, ahead_step, out, out_step, *epilogue = args
            half_bytes = builder.mul(depth, _INDEX(2 * vector_bytes))

            def multiply(k, sums):  # type: ignore[no-untyped-def]
                line, soon = (
                    builder.add(base, builder.mul(k, step))
                    for base, step in ((panel, _INDEX(2 * vector_bytes)), (ahead, ahead_step))
                )
                parts = []
                for h, v in vectors:
                    base, far = (builder.add(one, half_bytes) if h else one for one in (line, soon))
                    parts.append(builder.load(pointer(builder, stored, base, _INDEX(v * vector_bytes)), align=4))
                    if v * vector_bytes % _LINE_BYTES == 0:
                        fetch(builder, pointer(builder, ir.IntType(8), far, _INDEX(v * vector_bytes)))
                place, after = builder.shl(k, _INDEX(2)), []
                for r in range(rows):
                    row = builder.add(x, builder.mul(x_step, _INDEX(r)))
                    factor = spread(builder, builder.load(pointer(builder, unit, row, place), align=4), LANES)
                    for v, part in enumerate(parts):
                        after.append(_accumulate(builder, numbers, factor, part, sums[r * len(vectors) + v]))
                return after

            sums = loop(builder, depth, 1, [zero] * (rows * len(vectors)), multiply)
            offsets, count = [4 * (h * _HALF + v * LANES) for h, v in vectors], len(vectors)
            for r in range(rows):
                row = builder.add(out, builder.mul(out_step, _INDEX(r)))
                _write_row(builder, numbers, r, sums[r * count : (r + 1) * count], offsets, row, epilogue)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 12), generate

    return tile


def _write_row(
    builder: Any, numbers: str, r: int, sums: Sequence[Any], offsets: Sequence[int], row: Any, epilogue: Sequence[Any]
) -> None:
    """Write the results of row ``r`` of a tile.

    Args:
        builder: of the micro-kernel.
        numbers: of weights.
        r: the row.
        sums: its vectors of sums.
        offsets: of its vectors of results, in bytes.
        row: address of its first result.
        epilogue: addresses of bias, scale, row scales and row sums.
    """
    (bias, scale, row_scale, row_sum), floats = epilogue, _vector(_FLOAT)
    whole = numbers in ("int8", "int16")
    if whole:
        own, excess = (
            spread(builder, builder.load(pointer(builder, kind, base, _INDEX(4 * r)), align=4), LANES)
            for kind, base in ((_FLOAT, row_scale), (_INT, row_sum))
        )
    for value, offset in zip(sums, map(_INDEX, offsets), strict=True):
        if whole:
            own_scale = builder.fmul(own, builder.load(pointer(builder, floats, scale, offset), align=4))
            total = builder.sub(value, excess) if numbers == "int8" else value
            value = builder.fmul(builder.sitofp(total, floats), own_scale)
        value = builder.fadd(value, builder.load(pointer(builder, floats, bias, offset), align=4))
        builder.store(value, pointer(builder, floats, row, offset), align=4)


def _rows_of(numbers: str, halves: int, first: int) -> Any:
    """A kernel that calls the micro-kernel of ``first`` to ``first + 5`` rows, or of fewer where that is the most."""
    most = _pair_rows() if halves == 2 else tile_rows(numbers)
    one, two, three, four, five, six = (_tile(numbers, min(first + i, most), halves) for i in range(6))

    @kernel(label=f"_{numbers}_{halves}_{first}")
    def tile(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum, rows):  # type: ignore[no-untyped-def]
        count = rows - first
        if count == 0:
            one(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)
        elif count == 1:
            two(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)
        elif count == 2:
            three(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)
        elif count == 3:
            four(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)
        elif count == 4:
            five(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)
        else:
            six(x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum)

    return tile


@kernel
def _copy_edge(edge, out, out_step, rows, columns):  # type: ignore[no-untyped-def]
    """The first results of the last panel, which may reach beyond the outputs."""
    for r in range(rows):
        target = floats_at(out + r * out_step, 1, columns)
        for i in range(columns):
            target[0, i] = edge[r, i]


@kernel
def _to_fetch(turn, passes, part, depth, line, is_last):  # type: ignore[no-untyped-def]
    """What a tile of rows fetches: an address, and from there on so many bytes for each unit.

    Each of ``passes`` tiles its part of the half behind ``part``, which has ``line`` bytes for a unit; those before,
    all of ``part`` as they read it.
    """
    if turn < 0:
        return part + _AHEAD_BYTES, line
    share = (line + passes - 1) // passes
    if is_last:  # nothing comes next: what is there already
        return part, share
    return part + depth * (line + turn * share), share


def _half_bytes(numbers: str) -> int:
    """Bytes of a half for one unit of a row."""
    return _HALF * (2 if numbers == "int16" else 4)


def _few_multiplier(numbers: str) -> Any:
    """:func:`multiply_panels` of few rows: both halves of a panel together."""
    few, most, line = _rows_of(numbers, 2, 1), _pair_rows(), _half_bytes(numbers)

    @kernel(label=f"_{numbers}")
    def multiply_few(  # type: ignore[no-untyped-def]
        x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last
    ):
        edge = np.empty((most, PANEL), dtype=np.float32)
        for p in range(first, last):
            part, to, left = weight + p * 2 * depth * line, 4 * PANEL * p, outputs - PANEL * p
            target, step = out + to, out_step
            if left < PANEL:
                target, step = address(edge), 4 * PANEL
            few(
                x, x_step, part, depth, part + _AHEAD_BYTES, line, target, step, bias + to, scale + to, row_scale,
                row_sum, rows,
            )  # fmt: skip
            if left < PANEL:
                _copy_edge(edge, out + to, out_step, rows, left)

    return multiply_few


def _half_multiplier(numbers: str) -> Any:
    """A kernel of one tile of rows, at most :func:`tile_rows`, and a half."""
    some, many = _rows_of(numbers, 1, 1), _rows_of(numbers, 1, 7)

    @kernel(label=f"_{numbers}")
    def half(x, x_step, weight, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum, rows):  # type: ignore[no-untyped-def]
        if rows <= 6:
            some(x, x_step, weight, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum, rows)
        else:
            many(x, x_step, weight, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum, rows)

    return half


def _multiplier(numbers: str) -> Any:
    """See :func:`multiply_panels`."""
    most, pair, line = tile_rows(numbers), _pair_rows(), _half_bytes(numbers)
    multiply_few, half = _few_multiplier(numbers), _half_multiplier(numbers)

    @kernel(label=f"_{numbers}")
    def multiply(x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last):  # type: ignore[no-untyped-def]
        if rows <= pair:
            multiply_few(
                x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last
            )  # fmt: skip
            return
        tiles = (rows + most - 1) // most
        edge = np.empty((most, _HALF), dtype=np.float32)
        size, there = depth * line, -1  # the half that is in the cache by now
        piece = first
        while piece < last:
            p = piece // tiles
            low, high = piece - p * tiles, min(last - p * tiles, tiles)
            piece += high - low
            for number in range(2 * p, 2 * p + 2):
                part, to, left = weight + number * size, 4 * _HALF * number, outputs - _HALF * number
                if left <= 0:
                    break
                own = 0 if number == there else 1
                passes, is_last = high - low - own, number % 2 == 1 and piece >= last
                for t in range(low, high):
                    begin, end = rows * t // tiles, rows * (t + 1) // tiles
                    ahead, ahead_step = _to_fetch(t - low - own, passes, part, depth, line, is_last)
                    target, step = out + begin * out_step + to, out_step
                    if left < _HALF:
                        target, step = address(edge), 4 * _HALF
                    half(
                        x + begin * x_step, x_step, part, depth, ahead, ahead_step, target, step, bias + to, scale + to,
                        row_scale + 4 * begin, row_sum + 4 * begin, end - begin,
                    )  # fmt: skip
                    if left < _HALF:
                        _copy_edge(edge, out + begin * out_step + to, out_step, end - begin, left)
                if passes > 0:
                    there = number + 1

    return multiply


def _amx_multiplier(numbers: str) -> Any:
    """See :func:`multiply_panels`."""
    kind, most = numeric_kind(numbers), tile_rows(numbers)
    block = block_multiplier(kind)
    exact, few = kind == "int8", _multiplier(kind)  # exact sums may be taken in any order

    @kernel(label=f"_{numbers}")
    def multiply(x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last):  # type: ignore[no-untyped-def]
        if exact and rows <= _FEW_ROWS:
            few(x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last)
            return
        tiles, kept = (rows + most - 1) // most, kept_sums()
        for piece in range(first, last):
            p, t = piece // tiles, piece % tiles
            begin, end, to = rows * t // tiles, rows * (t + 1) // tiles, 4 * PANEL * p
            block(
                x + begin * x_step, x_step, weight + p * depth * 4 * PANEL, depth, out + begin * out_step + to,
                out_step, bias + to, scale + to, row_scale + 4 * begin, row_sum + 4 * begin, end - begin,
                min(PANEL, outputs - PANEL * p), kept,
            )  # fmt: skip
        release()

    return multiply


@kernel
def pieces(rows, outputs, most):  # type: ignore[no-untyped-def]
    """In how many pieces threads may share a product of which ``most`` rows are multiplied together."""
    return (outputs + PANEL - 1) // PANEL * ((rows + most - 1) // most)


def multiply_panels(numbers: str) -> Any:
    """The kernel of products with panels of these numbers (:func:`numbers_here`).

    Its arguments, addresses and counts (int64):

    - x, x_step: rows, in units (int8: four bytes; bfloat16 and int16: two numbers), zero behind the inputs. Digits are
      as :func:`wedlm_core.kernels.cpu.digits.split_rows` writes them.
    - weight, depth: panels, and units of a row.
    - out, out_step: float32 rows, written.
    - bias: float32, zeros where there is none, like scale as long as the panels.
    - scale: float32, of each output (integers and digits only, as the next one).
    - row_scale: float32, of each row.
    - row_sum: int32, 128 times the sum of each row's numbers (int8 only).
    - rows, outputs: of the product.
    - first, last: pieces to compute; each panel has one for every :func:`tile_rows` rows or fewer (:func:`pieces`).

    With "_amx", ``depth`` is a multiple of :func:`depth_step`.
    """
    return _MULTIPLIERS[numbers]


def _multiplier_of(numbers: str) -> Any:
    if has_digits(numbers):
        return multiply_digits
    return _amx_multiplier(numbers) if numbers.endswith("_amx") else _multiplier(numbers)


_MULTIPLIERS = {numbers: _multiplier_of(numbers) for numbers in numbers_here()}
