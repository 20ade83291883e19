"""``C += A @ B`` for up to four rows of A, in vector registers; A and C in float32, B in float32, bfloat16 or int8.

Every element of C is one chain of fused multiply-adds in the order of the inner dimension, for any shape of the tile.
So results depend neither on how many rows are multiplied together nor on the machine's vector length.

A matrix is given by the address of its first element and the number of elements from one row to the next. A call does
only a few thousand multiplications, and passing arrays would cost a large part of its time. B is cut into groups of 16
columns, which may be far from each other.

Matrices come from memory one after the other. While one is multiplied, the bytes of another are fetched, as many: the
processor's own guess ends with each page of 4 KiB, which is one such matrix or less.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import LANES

__all__ = ["MULTIPLIERS", "ROWS", "address"]

ROWS = 4
"""Most rows of A in one call: with four vectors of B their sums fill half of 32 registers."""
_WIDTHS = (4, 2, 1) if llvmlite.binding.get_host_cpu_features().get("avx512f") else (1,)
"""Widths of tiles in vectors of 16. Without AVX-512 a vector takes two registers of 16."""
_FLOAT, _VECTOR = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES)
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
    ints, shorts, bytes_ = (
        one if lanes == 1 else ir.VectorType(one, lanes) for one in (ir.IntType(32), ir.IntType(16), ir.IntType(8))
    )
    own = _POWERS[numbers]
    row_bytes = vectors * lanes << own
    sixteen = ints(16) if lanes == 1 else ints([16] * lanes)
    name = "llvm.fma.f32" if lanes == 1 else f"llvm.fma.v{lanes}f32"

    @intrinsic
    def tile(typing_context, a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            a, a_step, b, b_step, b_group, ahead, c, c_step, depth, fresh = args
            fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)

            def at(base, row, column, what, power=2):  # type: ignore[no-untyped-def]
                """Pointer of type ``what`` to an element of ``2 ** power`` bytes."""
                offset = builder.shl(builder.add(row, column), _INDEX(power))
                return builder.inttoptr(builder.add(base, offset), what.as_pointer())

            def part(row, column):  # type: ignore[no-untyped-def]
                """A vector of B."""
                if numbers == "float32":
                    return builder.load(at(b, row, column, kind), align=4)
                if numbers == "int8":
                    byte = builder.load(at(b, row, column, bytes_, own), align=1)
                    return builder.sitofp(builder.sext(byte, ints), kind)
                bits = builder.zext(builder.load(at(b, row, column, shorts, own), align=2), ints)
                return builder.bitcast(builder.shl(bits, sixteen), kind)

            def broadcast(value):  # type: ignore[no-untyped-def]
                if lanes == 1:
                    return value
                one = builder.insert_element(kind(ir.Undefined), value, ir.IntType(32)(0))
                return builder.shuffle_vector(
                    one, kind(ir.Undefined), ir.VectorType(ir.IntType(32), lanes)([0] * lanes)
                )

            def fetch(row):  # type: ignore[no-untyped-def]
                """Fetch as many bytes ahead as a row of B has here."""
                begin = builder.add(ahead, builder.mul(row, _INDEX(row_bytes)))
                for line in range(0, row_bytes, _LINE):
                    place = builder.inttoptr(builder.add(begin, _INDEX(line)), ir.IntType(8).as_pointer())
                    kinds = ir.FunctionType(ir.VoidType(), [place.type, *[ir.IntType(32)] * 3])
                    function = cgutils.get_or_insert_function(builder.module, kinds, "llvm.prefetch.p0")
                    builder.call(function, [place, *(ir.IntType(32)(one) for one in (0, 3, 1))])  # to read, data

            places, sums = [], []
            for r in range(rows):
                for v in range(vectors):
                    places.append(at(c, builder.mul(c_step, _INDEX(r)), _INDEX(v * lanes), kind))
                    before = builder.load(places[-1], align=4)
                    zero = kind(0.0) if lanes == 1 else kind([0.0] * lanes)
                    sums.append(cgutils.alloca_once_value(builder, builder.select(fresh, zero, before)))
            with cgutils.for_range(builder, depth) as loop:
                line = builder.mul(b_step, loop.index)
                if lanes > 1:
                    fetch(loop.index)
                parts = [part(line, builder.mul(b_group, _INDEX(v))) for v in range(vectors)]
                for r in range(rows):
                    factor = broadcast(builder.load(at(a, builder.mul(a_step, _INDEX(r)), loop.index, _FLOAT), align=4))
                    for v in range(vectors):
                        total = sums[r * vectors + v]
                        builder.store(builder.call(fused, [factor, parts[v], builder.load(total)]), total)
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9, types.boolean), generate

    return tile


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
    - ahead: address from which on as many bytes are fetched as those columns of B have that fill groups.
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
