"""float32 as signed digits of 8 bits, which matrix units multiply and add exactly (:mod:`.digit_products`).

All numbers of a row share one scale, a power of two: ``x = scale * (d0 + d1 / 2**8 + d2 / 2**16 + d3 / 2**24)``, 32
bits in all, so that numbers down to 1/64 of the largest keep every bit of a float32 (but where the largest is below
2**-96). All weights of an output share one too, and have three digits: 24 bits, as a float32 has, but all at the scale
of the largest. So they take three bytes each, where memory decides how fast few rows are multiplied.

Of a number and a weight the digits i and j are multiplied where ``i + j <= 3``; what is left out is less than 2**-28 of
the largest number of the row times the largest weight. Products of one ``i + j`` are added in int32, which is exact for
up to :data:`MOST_INPUTS` inputs. So a result is rounded a few times in all, where a chain of float32 additions is
rounded once for each input; and its bits depend neither on other rows, nor on threads, nor on the order of additions.

What is lost goes with the largest weight of an output and the largest number of a row. Weights that were bfloat16, as
most checkpoints have them, stay what they are down to 2**-15 of the largest: results of normal numbers are off by
1.6e-8 of their size (root mean square), where sums in float32 are off by 7.6e-7. Weights with more bits are rounded at
2**-23 of the largest: 2.0e-7. Where some weights of an
output are tens of times as large as the others, which meet larger numbers, it would be more than float32 sums lose,
without a bound: a model with such weights (:func:`coarse_outputs`) holds floats.

Nine products of digits take less time than one of float32: matrix units multiply 32 times as many int8 in a cycle as
vectors do float32. That products of wider numbers can be had exactly from narrow ones is known from Ozaki, Ogita, Oishi
and Rump (Numerical Algorithms 59, 2012) and, with integers, Ootomo, Ozaki and Yokota (arXiv 2306.11975).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.emit import call, loop, pointer
from wedlm_core.kernels.cpu.emit import spread as in_all_lanes
from wedlm_core.kernels.cpu.panel_packing import first_number
from wedlm_core.kernels.cpu.scalar import F32
from wedlm_core.kernels.cpu.vector import LANES, floor, fma, load, split, spread, total, two_to, where_less

__all__ = [
    "BLOCK_INPUTS", "DIGITS", "GROUP", "LAST_WORTH", "MOST_INPUTS", "TILE", "WEIGHT_DIGITS", "coarse_outputs",
    "look_up_digits", "split_rows", "split_weights",
]  # fmt: skip

DIGITS = 4
"""Of a number of a row."""
WEIGHT_DIGITS = 3
"""Of a weight."""
LAST_WORTH = 2.0 ** (-8 * (WEIGHT_DIGITS - 1))
"""Of the last digit of a weight, by that of its first."""
BLOCK_INPUTS = 64
"""Inputs that one instruction multiplies: rows and weights are whole multiples of it."""
TILE = 16
"""Rows of a tile: rows are stored in whole ones."""
GROUP = 16
"""Outputs of a group, whose weights lie together."""
MOST_INPUTS = 2**31 // (WEIGHT_DIGITS * 2**14)
"""Inputs of a product: three sums of so many products of digits, of up to 2**14 each, fit in 32 bits."""
_DIGIT_BYTES = TILE * BLOCK_INPUTS  # of a digit of 16 rows in a block of inputs
_SMALLEST = 2.0**-96  # a row's largest number, at least: its scale and the inverse are normal numbers
_MOST_OF_A_POWER = 0.992  # a number up to so much of a power of two stays below it when its digits carry
_FEW_TIMES = 4.0  # the mean of an output's weights: larger ones are not like the others
_MOST_LOST = 2.0**-19  # of the mean of those others, root mean square: four times what short float32 sums lose
_CARRIES, _SIGNS = 0x00808080, 0x80808080
_INT, _INDEX, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, LANES), ir.VectorType(_FLOAT, LANES)
_intrinsic: Any = intrinsic


def _block_of(builder: Any, x: Any, size: Any, k: Any) -> list[Any]:
    """The bits of a block of numbers from ``x`` on, in four vectors; zero beyond ``size``."""
    base = builder.add(x, builder.mul(k, _INDEX(4 * BLOCK_INPUTS)))
    left = in_all_lanes(builder, builder.trunc(builder.sub(size, builder.mul(k, _INDEX(BLOCK_INPUTS))), _INT), LANES)
    found = []
    for first in range(0, BLOCK_INPUTS, LANES):
        there = builder.icmp_signed("<", _INTS(list(range(first, first + LANES))), left)
        place, nothing = pointer(builder, _INTS, base, _INDEX(4 * first)), _INTS([0] * LANES)
        found.append(call(builder, f"llvm.masked.load.v{LANES}i32.p0", _INTS, place, _INT(4), there, nothing))
    return found


def _blocks_of(builder: Any, size: Any) -> Any:
    return builder.udiv(builder.add(size, _INDEX(BLOCK_INPUTS - 1)), _INDEX(BLOCK_INPUTS))


@_intrinsic
def _largest_of(typing_context: Any, x: Any, size: Any) -> Any:
    """The largest absolute value of ``size`` numbers from an address on; infinite or NaN if one of them is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, size = args

        def compare(k: Any, before: list[Any]) -> list[Any]:
            # Bits of positive floats are in the order of the floats, and those of NaN come last.
            found = [builder.and_(one, _INTS([0x7FFFFFFF] * LANES)) for one in _block_of(builder, x, size, k)]
            return [call(builder, f"llvm.smax.v{LANES}i32", _INTS, *pair) for pair in zip(before, found, strict=True)]

        a, b, c, d = loop(builder, _blocks_of(builder, size), 1, [_INTS([0] * LANES)] * 4, compare)
        two = [call(builder, f"llvm.smax.v{LANES}i32", _INTS, *pair) for pair in ((a, b), (c, d))]
        most = call(builder, f"llvm.smax.v{LANES}i32", _INTS, *two)
        return builder.bitcast(call(builder, f"llvm.vector.reduce.smax.v{LANES}i32", _INT, most), _FLOAT)

    return types.float32(types.intp, types.intp), generate


def _put_digits(digits: int) -> Any:
    """An intrinsic: store the digits of ``size`` numbers from an address on, each times ``inverse`` and rounded.

    Digit d of block b of 64 numbers takes 64 bytes at ``place + (digits * b + d) * step``: number n is byte ``n % 16 *
    4 + n // 16`` of them, so that four vectors need only be shifted to be one. Beyond ``size`` there are zeros.
    """
    # What the lower digits carry to the higher ones, so that each is between -128 and 127.
    carry = _CARRIES >> 8 * (DIGITS - digits)

    @_intrinsic
    def put_digits(typing_context, x, size, inverse, place, step):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, size, inverse, place, step = args

            def put(k, _):  # type: ignore[no-untyped-def]
                carried = []
                for bits in _block_of(builder, x, size, k):
                    scaled = builder.fmul(builder.bitcast(bits, _FLOATS), in_all_lanes(builder, inverse, LANES))
                    whole = builder.fptosi(call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, scaled), _INTS)
                    carried.append(builder.add(whole, _INTS([carry] * LANES)))
                for d in range(digits):
                    digit = _INTS([_SIGNS if d else 0] * LANES)
                    for q, value in enumerate(carried):
                        right = 8 * (digits - 1 - d - q)
                        moved = (builder.lshr if right >= 0 else builder.shl)(value, _INTS([abs(right)] * LANES))
                        digit = builder.xor(digit, builder.and_(moved, _INTS([0xFF << 8 * q] * LANES)))
                    to = builder.add(place, builder.mul(step, builder.add(builder.mul(k, _INDEX(digits)), _INDEX(d))))
                    builder.store(digit, pointer(builder, _INTS, to), align=4)
                return []

            loop(builder, _blocks_of(builder, size), 1, [], put)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.float32, types.intp, types.intp), generate

    return put_digits


@kernel
def _power_of(top):  # type: ignore[no-untyped-def]
    """The power of two below which digits hold numbers of which the largest is ``top``."""
    power, mantissa = split(max(top, F32(_SMALLEST)))
    return power + F32(1.0) if mantissa > F32(_MOST_OF_A_POWER) else power


def _splitting(digits: int) -> Any:
    """A kernel: write the digits of ``size`` numbers from an address on, as :func:`_put_digits` does; their scale.

    The scale is NaN where a number is NaN or infinite: the digits mean nothing then.
    """
    put_digits, bits = _put_digits(digits), 8 * digits - 1

    @kernel(label=f"_{digits}")
    def split_numbers(x, size, place, step):  # type: ignore[no-untyped-def]
        top = _largest_of(x, size)
        if not top < F32(np.inf):
            put_digits(x, size, F32(0.0), place, step)
            return F32(np.nan)
        power = _power_of(top)
        put_digits(x, size, two_to(F32(bits) - power), place, step)
        return two_to(power - F32(7.0))

    return split_numbers


_split_row, _split_output = _splitting(DIGITS), _splitting(WEIGHT_DIGITS)


@kernel
def split_rows(x, depth, place, scale, first, last):  # type: ignore[no-untyped-def]
    """Write the digits of rows, in tiles of 16 rows, as products read them.

    A tile has for each block of 64 inputs, for each of the four digits, 64 bytes of each row (:func:`_put_digits`).

    Args:
        x: ``[T, I]``.
        depth: I, rounded up to whole blocks.
        place: address of the tiles of all rows, ``4 * depth`` bytes for each row.
        scale: ``[T]``, written.
        first: first row to write.
        last: one past the last row to write.
    """
    size = x.shape[1]
    for t in range(first, last):
        to = place + t // TILE * (TILE * DIGITS * depth) + t % TILE * BLOCK_INPUTS
        scale[t] = _split_row(x.ctypes.data + 4 * t * size, size, to, _DIGIT_BYTES)


@kernel
def split_weights(x, digits, scale, first, last):  # type: ignore[no-untyped-def]
    """Write the digits of outputs: for each block of inputs the three digits, 64 bytes each.

    Args:
        x: ``[R, I]``.
        digits: int8 ``[R, 3 * I']``, written; I' is I, rounded up to whole blocks.
        scale: ``[R]``, written.
        first: first output to write.
        last: one past the last output to write.
    """
    size, width = x.shape[1], digits.shape[1]
    for r in range(first, last):
        place = digits.ctypes.data + r * width
        scale[r] = _split_output(x.ctypes.data + 4 * r * size, size, place, BLOCK_INPUTS)


@kernel
def coarse_outputs(x, first, last):  # type: ignore[no-untyped-def]
    """How many outputs have weights that three digits hold too coarsely.

    Those are rounded, and have a few weights that are far larger than the others: by rounding they lose more than
    :data:`_MOST_LOST` of the mean of those others' absolute values.

    Args:
        x: ``[R, I]``.
        first: first output to look at.
        last: one past the last output to look at.
    """
    size, found = x.shape[1], 0
    for r in range(first, last):
        top = _largest_of(x.ctypes.data + 4 * r * size, size)
        if not F32(_SMALLEST) <= top < F32(np.inf):  # of a dead output nothing is lost that would be seen
            continue
        inverse = two_to(F32(8 * WEIGHT_DIGITS - 1) - _power_of(top))
        lost, sizes = spread(F32(0.0)), spread(F32(0.0))
        for i in range(0, size, LANES):
            steps = load(x, r * size + i, size - i, F32(0.0)) * inverse
            off = steps - floor(steps + F32(0.5))
            lost, sizes = fma(off, off, lost), sizes + max(steps, -steps)
        small, others = total(sizes) / F32(size) * F32(_FEW_TIMES), spread(F32(0.0))
        for i in range(0, size, LANES):
            steps = load(x, r * size + i, size - i, F32(0.0)) * inverse
            others = others + where_less(max(steps, -steps), small, max(steps, -steps), spread(F32(0.0)))
        mean = total(others) / F32(size) * F32(_MOST_LOST)
        found += total(lost) / F32(size) > mean * mean
    return found


@kernel
def look_up_digits(panels, scale, ids, out, first, last):  # type: ignore[no-untyped-def]
    """:func:`wedlm_core.kernels.cpu.panel_packing.look_up` of digits, int8 ``[P, 4, units, 16, 4]``.

    Numbers were rounded when they were packed: their digits fit into a float32.
    """
    _, _, _, group, per = panels.shape
    numbers, size = panels.reshape(panels.size), out.shape[1]
    line = group * per  # bytes between units of an output
    step = LANES * line  # and between its digits
    for t in range(first, last):
        at = first_number(panels, ids[t])
        if at < 0:
            return False
        own = scale[ids[t]] * F32(LAST_WORTH)
        for i in range(size):
            to = at + i // BLOCK_INPUTS * (WEIGHT_DIGITS * step) + i % LANES * line + i % BLOCK_INPUTS // LANES
            whole = np.int32(0)
            for d in range(WEIGHT_DIGITS):
                whole = np.int32(whole * np.int32(256) + np.int32(numbers[to + d * step]))
            out[t, i] = F32(whole) * own
    return True
