"""Results of products from their sums, vector by vector: the scale of integers, the bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.emit import fetch, loop, pointer, spread
from wedlm_core.kernels.cpu.vector import LANES

_BYTE, _INT, _INDEX, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_intrinsic: Any = intrinsic


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
            own_scale = builder.fmul(own, builder.load(pointer(builder, _FLOATS, scale, offset), align=4))
            total = builder.sub(value, excess) if numbers == "int8" else value
            value = builder.fmul(builder.sitofp(total, _FLOATS), own_scale)
        value = builder.fadd(value, builder.load(pointer(builder, _FLOATS, bias, offset), align=4))
        builder.store(value, pointer(builder, _FLOATS, row, offset), align=4)


def result_writer(numbers: str, outputs: int) -> Any:
    """An intrinsic that writes the results of ``rows`` rows, one or more, from their sums in memory.

    Its arguments are the address of the sums, ``outputs`` of four bytes in each row, and those of
    :func:`wedlm_core.kernels.cpu.panel_products.multiply_panels` that are named like them.
    """
    kind, offsets = _INTS if numbers == "int8" else _FLOATS, range(0, 4 * outputs, 4 * LANES)

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
