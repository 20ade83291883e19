"""Tiles of products with packed weights (:mod:`.panel_products`): a few rows times one half of a panel, or both.

Sums are in registers, weights are read once, from the first unit of the inputs to the last, and later weights are
fetched meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.emit import call, fetch, loop, pointer, spread
from wedlm_core.kernels.cpu.vector import LANES

HALF = 32
"""Outputs of half a panel."""
STEP = 16
"""Units of four bytes that matrix units take along the inputs: rows and panels are whole multiples of it."""
_LINE_BYTES = 64
_BYTE, _INT, _INDEX, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_LEAST_NORMAL = 2.0**-126
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


def write_row(
    builder: Any, numbers: str, r: Any, sums: Sequence[Any], offsets: Sequence[int], row: Any, epilogue: Sequence[Any]
) -> None:
    """Emit code that writes the results of row ``r``.

    Args:
        builder: of the function.
        numbers: of weights: sums of "int8" and "int16" are int32, others float32.
        r: the row, int64.
        sums: its vectors of sums.
        offsets: of its vectors of results, in bytes.
        row: address of its first result.
        epilogue: addresses of bias, scale, row scales and row sums.
    """
    bias, scale, row_scale, row_sum = epilogue
    whole = numbers in ("int8", "int16")
    if whole:
        own, excess = (
            spread(builder, builder.load(pointer(builder, kind, base, builder.shl(r, _INDEX(2))), align=4), LANES)
            for kind, base in ((_FLOAT, row_scale), (_INT, row_sum))
        )
    for value, offset in zip(sums, map(_INDEX, offsets), strict=True):
        if whole:
            own_scale = builder.fmul(own, builder.load(pointer(builder, _vector(_FLOAT), scale, offset), align=4))
            total = builder.sub(value, excess) if numbers == "int8" else value
            value = builder.fmul(builder.sitofp(total, _vector(_FLOAT)), own_scale)
        value = builder.fadd(value, builder.load(pointer(builder, _vector(_FLOAT), bias, offset), align=4))
        builder.store(value, pointer(builder, _vector(_FLOAT), row, offset), align=4)


def result_writer(numbers: str, outputs: int) -> Any:
    """An intrinsic that writes the results of ``rows`` rows, one or more, from their sums in memory.

    Its arguments are the address of the sums, ``outputs`` of four bytes in each row, and those of
    :func:`wedlm_core.kernels.cpu.panel_products.multiply_panels` that are named like them.
    """
    kind, offsets = _vector(_INT) if numbers == "int8" else _vector(_FLOAT), range(0, 4 * outputs, 4 * LANES)

    @_intrinsic
    def write(typing_context, sums, out, out_step, bias, scale, row_scale, row_sum, rows):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            sums, out, out_step, *epilogue, rows = args

            def write_next(r, _):  # type: ignore[no-untyped-def]
                places = (
                    pointer(builder, kind, sums, builder.mul(r, _INDEX(4 * outputs)), _INDEX(at)) for at in offsets
                )
                found = [builder.load(place, align=4) for place in places]
                write_row(builder, numbers, r, found, offsets, builder.add(out, builder.mul(r, out_step)), epilogue)
                return []

            loop(builder, rows, 1, [], write_next)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return write


@_intrinsic
def fetch_results(typing_context: Any, out: Any, out_step: Any, rows: Any) -> Any:
    """Fetch the first 64 results of ``rows`` rows, one or more, before they are written: another thread had them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, out_step, rows = args

        def fetch_next(r: Any, _: Any) -> list[Any]:
            row = builder.mul(r, out_step)
            for at in range(0, 256, 64):
                fetch(builder, pointer(builder, _BYTE, out, row, _INDEX(at)), to_write=True)
            return []

        loop(builder, rows, 1, [], fetch_next)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), generate


def panel_tile(numbers: str, rows: int, halves: int) -> Any:
    """The micro-kernel of ``rows x (32 * halves)`` outputs, as an intrinsic.

    For unit k it fetches the bytes at ``ahead + k * ahead_step``, as many as it reads of weights: into the L1 cache; of
    both halves, where few rows wait for memory, into L2, which is faster. Of "bfloat16_amx" it takes both halves.
    """
    if numbers == "bfloat16_amx":
        return _tile_of_chains(rows)
    whole = numbers in ("int8", "int16")
    unit = _FLOAT if numbers == "float32" else _INT
    # A vector of weights has the units of 16 outputs; int16 are stored as int8.
    stored = _vector(ir.IntType(8), 2 * LANES) if numbers == "int16" else _vector(unit)
    vector_bytes = 2 * LANES if numbers == "int16" else 4 * LANES
    vectors = [(h, v) for h in range(halves) for v in range(HALF // LANES)]
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
                        fetch(builder, pointer(builder, _BYTE, far, _INDEX(v * vector_bytes)), level=halves)
                place, after = builder.shl(k, _INDEX(2)), []
                for r in range(rows):
                    row = builder.add(x, builder.mul(x_step, _INDEX(r)))
                    factor = spread(builder, builder.load(pointer(builder, unit, row, place), align=4), LANES)
                    for v, part in enumerate(parts):
                        after.append(_accumulate(builder, numbers, factor, part, sums[r * len(vectors) + v]))
                return after

            sums = loop(builder, depth, 1, [zero] * (rows * len(vectors)), multiply)
            offsets, count = [4 * (h * HALF + v * LANES) for h, v in vectors], len(vectors)
            for r in range(rows):
                row = builder.add(out, builder.mul(out_step, _INDEX(r)))
                write_row(builder, numbers, _INDEX(r), sums[r * count : (r + 1) * count], offsets, row, epilogue)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 12), generate

    return tile


def _tile_of_chains(rows: int) -> Any:
    """:func:`panel_tile` of bfloat16 with the sums that matrix units would make, bit for bit.

    For every 16 units an instruction of theirs (TDPBF16PS) adds up the first numbers of all units in a chain from zero,
    the second ones in another, adds the two, and adds that to the sum. It takes numbers that are denormal for zero, and
    makes such a result zero; so does the instruction of vectors, while their additions do not.
    """
    vectors = [(h, v) for h in range(2) for v in range(HALF // LANES)]
    stored, zero, line_bytes = _vector(_INT), _vector(_FLOAT)([0.0] * LANES), 4 * HALF

    @_intrinsic
    def tile(  # type: ignore[no-untyped-def]
        typing_context, x, x_step, panel, depth, ahead, ahead_step, out, out_step, bias, scale, row_scale, row_sum
    ):
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_step, panel, depth, ahead, ahead_step, out, out_step, *epilogue = args
            half_bytes = builder.mul(depth, _INDEX(line_bytes))

            def add_step(start, sums):  # type: ignore[no-untyped-def]
                def multiply(unit, chains):  # type: ignore[no-untyped-def]
                    k = builder.add(start, unit)
                    parts = []
                    for h, v in vectors:
                        offsets = (_INDEX(4 * LANES * v), *([half_bytes] if h else []))
                        place = pointer(builder, stored, panel, builder.mul(k, _INDEX(line_bytes)), *offsets)
                        parts.append(builder.load(place, align=4))
                        fetch(builder, pointer(builder, _BYTE, ahead, builder.mul(k, ahead_step), *offsets))
                    after: list[Any] = []
                    for r in range(rows):
                        row = builder.add(x, builder.mul(x_step, _INDEX(r)))
                        pair = builder.load(pointer(builder, _INT, row, builder.shl(k, _INDEX(2))), align=4)
                        for own in (0xFFFF, 0xFFFF0000):  # one number of a pair, and zero times zero for the other
                            factor = spread(builder, builder.and_(pair, _INT(own)), LANES)
                            for part in parts:
                                kept = builder.and_(part, stored([own] * LANES))
                                chain = chains[len(after)]
                                after.append(_accumulate(builder, "bfloat16", factor, kept, chain))
                    return after

                chains = loop(builder, _INDEX(STEP), 1, [zero] * (2 * len(sums)), multiply)
                after: list[Any] = []
                count = len(vectors)
                for i, before in enumerate(sums):
                    first = i // count * 2 * count + i % count
                    both = _without_denormals(builder, builder.fadd(chains[first], chains[first + count]))
                    after.append(_without_denormals(builder, builder.fadd(before, both)))
                return after

            sums = loop(builder, depth, STEP, [zero] * (rows * len(vectors)), add_step)
            offsets, count = [4 * (h * HALF + v * LANES) for h, v in vectors], len(vectors)
            for r in range(rows):
                row = builder.add(out, builder.mul(out_step, _INDEX(r)))
                write_row(builder, "bfloat16", _INDEX(r), sums[r * count : (r + 1) * count], offsets, row, epilogue)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 12), generate

    return tile


def _without_denormals(builder: Any, value: Any) -> Any:
    """A vector of floats, with zero in place of denormal ones."""
    size = call(builder, f"llvm.fabs.v{LANES}f32", value.type, value)
    is_small = builder.fcmp_ordered("<", size, value.type([_LEAST_NORMAL] * LANES))
    return builder.select(is_small, value.type([0.0] * LANES), value)
