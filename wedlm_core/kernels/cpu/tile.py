"""``C += A @ B`` for up to four rows of A, in vector registers; A and C in float32, B in float32, bfloat16 or int8.

Every element of C is one chain of fused multiply-adds in the order of the inner dimension, for any shape of the tile.
So results depend neither on how many rows are multiplied together nor on the machine's vector length.

A matrix is given by the address of its first element and the number of elements from one row to the next. A call does
only a few thousand multiplications, and passing arrays would cost a large part of its time. B is cut into groups of 16
columns, which may be far from each other.

Matrices come from memory one after the other. While one is multiplied, the bytes of another are fetched, as many: the
processor's own guess ends with each page of 4 KiB, which is one such matrix or less. They go to the L2 cache: two of
these matrices seldom fit in L1.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.emit import call, fetch, loop, pointer, spread
from wedlm_core.kernels.cpu.scalar import LANES

ROWS = 4
"""Most rows of A in one call: with four vectors of B their sums fill half of 32 registers."""
_WIDTHS = (4, 2, 1) if llvmlite.binding.get_host_cpu_features().get("avx512f") else (1,)
"""Widths of tiles in vectors of 16. Without AVX-512 a vector takes two registers of 16."""
_FLOAT = ir.FloatType()
_INDEX = ir.IntType(64)
_LINE = 64  # bytes that are fetched together
_POWERS = {"float32": 2, "bfloat16": 1, "int8": 0}  # a number of B takes two to this power of bytes


@intrinsic
def _address(typing_context: Any, array: Any) -> Any:
    signature = types.intp(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _INDEX)

    return signature, generate


address: Any = _address
"""The address of an array's first element; valid while the array is referenced elsewhere."""


def _tile(rows: int, lanes: int, vectors: int, numbers: str) -> Any:
    """The micro-kernel of ``rows x (lanes * vectors)`` elements of C, as an intrinsic, for these numbers of B."""
    kind = _FLOAT if lanes == 1 else ir.VectorType(_FLOAT, lanes)
    zero = kind(0.0) if lanes == 1 else kind([0.0] * lanes)
    row_bytes = vectors * lanes << _POWERS[numbers]
    name = "llvm.fma.f32" if lanes == 1 else f"llvm.fma.v{lanes}f32"

    @intrinsic
    def tile(typing_context, a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh = args

            def at(base, row, column, what):  # type: ignore[no-untyped-def]
                """Pointer of type ``what`` to an element of four bytes."""
                return pointer(builder, what, base, builder.shl(builder.add(row, column), _INDEX(2)))

            def multiply(k, sums):  # type: ignore[no-untyped-def]
                line = builder.mul(b_step, k)
                if lanes > 1:
                    _fetch_row(builder, ahead, k, row_bytes)
                parts = []
                for v in range(vectors):
                    element = builder.add(line, builder.mul(b_group, _INDEX(v)))
                    parts.append(_part_of_b(builder, numbers, lanes, b, element))
                after = []
                for r in range(rows):
                    number = builder.load(at(a, builder.mul(a_step, _INDEX(r)), k, _FLOAT), align=4)
                    factor = spread(builder, number, lanes)
                    for v, part in enumerate(parts):
                        after.append(call(builder, name, kind, factor, part, sums[r * vectors + v]))
                return after

            places, before = [], []
            for r in range(rows):
                for v in range(vectors):
                    places.append(at(c, builder.mul(c_step, _INDEX(r)), _INDEX(v * lanes), kind))
                    before.append(builder.select(fresh, zero, builder.load(places[-1], align=4)))
            for place, total in zip(places, loop(builder, depth, 1, before, multiply), strict=True):
                builder.store(total, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9, types.boolean), generate

    return tile


def _part_of_b(builder: Any, numbers: str, lanes: int, b: Any, element: Any) -> Any:
    """``lanes`` numbers of B from an element on, as float32."""
    ints, shorts, bytes_, floats = (
        one if lanes == 1 else ir.VectorType(one, lanes)
        for one in (ir.IntType(32), ir.IntType(16), ir.IntType(8), _FLOAT)
    )
    held = {"float32": floats, "bfloat16": shorts, "int8": bytes_}[numbers]
    place = pointer(builder, held, b, builder.shl(element, _INDEX(_POWERS[numbers])))
    part = builder.load(place, align=1 << _POWERS[numbers])
    if numbers == "float32":
        return part
    if numbers == "int8":
        return builder.sitofp(builder.sext(part, ints), floats)
    sixteen = ints(16) if lanes == 1 else ints([16] * lanes)
    return builder.bitcast(builder.shl(builder.zext(part, ints), sixteen), floats)


def _fetch_row(builder: Any, ahead: Any, k: Any, row_bytes: int) -> None:
    """Fetch as many bytes ahead as row ``k`` of B has in a tile."""
    begin = builder.add(ahead, builder.mul(k, _INDEX(row_bytes)))
    for line in range(0, row_bytes, _LINE):
        fetch(builder, pointer(builder, ir.IntType(8), begin, _INDEX(line)), level=2)


def _strip(lanes: int, vectors: int, numbers: str) -> Any:
    """The product for one tile width of columns."""
    one, two, three, four = (_tile(rows, lanes, vectors, numbers) for rows in range(1, ROWS + 1))

    @kernel(label=f"_{lanes}_{vectors}_{numbers}")
    def strip(a, a_step, b, b_step, b_group, ahead, c, c_step, rows, depth, fresh):  # type: ignore[no-untyped-def]
        if rows == 4:
            four(a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh)
        elif rows == 3:
            three(a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh)
        elif rows == 2:
            two(a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh)
        else:
            one(a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh)

    return strip


def _multiplier(numbers: str) -> Any:
    """The product for these numbers of B.

    Its arguments, addresses, counts of elements, and one flag:

    - a, a_step: A, and elements from a row of A to the next.
    - b, b_step: the same of B.
    - b_group: elements of B from 16 columns to the next 16.
    - ahead: address of memory to fetch, as many bytes as the columns of B that fill groups.
    - c, c_step: as A's; C must not overlap A or B.
    - rows: 1 to 4.
    - depth: the inner dimension.
    - columns: of B and C.
    - fresh: whether the old content of C is ignored.
    """
    strips = {width: _strip(LANES, width, numbers) for width in _WIDTHS}
    most, single = _WIDTHS[0], _strip(1, 1, numbers)
    widest, two, one = strips[most], strips.get(2, strips[1]), strips[1]
    size, has_two = 1 << _POWERS[numbers], 2 in strips

    @kernel(label=f"_{numbers}")
    def multiply(a, a_step, b, b_step, b_group, ahead, c, c_step, rows, depth, columns, fresh):  # type: ignore[no-untyped-def]
        left = columns // LANES
        while left >= most:
            widest(a, a_step, b, b_step, b_group, ahead, c, c_step, rows, depth, fresh)
            left -= most
            b += size * most * b_group
            c += 4 * most * LANES
            ahead += size * most * LANES * depth
        if has_two and left >= 2:
            two(a, a_step, b, b_step, b_group, ahead, c, c_step, rows, depth, fresh)
            left -= 2
            b += size * 2 * b_group
            c += 4 * 2 * LANES
            ahead += size * 2 * LANES * depth
        if left:
            one(a, a_step, b, b_step, b_group, ahead, c, c_step, rows, depth, fresh)
            b += size * b_group
            c += 4 * LANES
        for j in range(columns % LANES):
            single(a, a_step, b + size * j, b_step, b_group, ahead, c + 4 * j, c_step, rows, depth, fresh)

    return multiply


MULTIPLIERS = {numbers: _multiplier(numbers) for numbers in _POWERS}
"""``C = A @ B`` if ``fresh``, else ``C += A @ B``; A is ``[rows, depth]``, B ``[depth, columns]``, by the numbers of B.

bfloat16 and int8 give the bits that B widened to float32 would give."""
