"""The products of a forward, by the numbers of weights and of the rows that meet them."""

from __future__ import annotations

from typing import Any

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at, floats_at, numbers_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.eight_bits import round_rows, sum_rows
from wedlm_core.kernels.cpu.panel_products import (
    line_units,
    multiply_panels,
    numbers_here,
    numeric_kind,
    pieces,
    tile_rows,
)
from wedlm_core.kernels.cpu.records import product_at, task_at
from wedlm_core.kernels.cpu.scalar import F32
from wedlm_core.kernels.cpu.team_kernels import STATE_SIZE, by_rows, meet, part_of
from wedlm_core.kernels.cpu.vector import LANES, load, store


@kernel
def _copy_rows(x, out, first, last):  # type: ignore[no-untyped-def]
    """Copy rows to others with longer lines, of float32 or bfloat16 (as its bits), zero after the copy."""
    size, step = x.shape[1], out.shape[1]
    for t in range(first, last):
        for i in range(0, step, LANES):
            store(out, t * step + i, step - i, load(x, t * size + i, size - i, F32(0.0)))


def _narrowing(numbers: str) -> Any:
    """A kernel that converts rows ``first .. last - 1`` of ``x`` and writes them at ``to``, see :func:`line_units`.

    It returns where the first of all rows is, or would be, and the bytes from row to row. Rows in float32 stay in x
    where they need no gaps.
    """
    kind, units = numeric_kind(numbers), line_units(numbers)
    if kind == "float32":

        @kernel(label=f"_{numbers}")
        def to_float32(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            step = units(product.depth)
            if step == product.depth:
                return x, 4 * product.depth
            _copy_rows(floats_at(x, rows, product.inputs), floats_at(to, rows, step), first, last)
            return to, 4 * step

        return to_float32
    if kind == "bfloat16":

        @kernel(label=f"_{numbers}")
        def to_bfloat16(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            step = units(product.depth)
            _copy_rows(floats_at(x, rows, product.inputs), array_at(to, (rows, 2 * step), np.uint16), first, last)
            return to, 4 * step

        return to_bfloat16
    if kind == "int8":

        @kernel(label=f"_{numbers}")
        def to_int8(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            wide, step = floats_at(x, rows, product.inputs), units(product.depth)
            byte = array_at(to, (rows, 4 * step), np.int8)
            round_rows(wide, byte, array_at(task.row_scale, (rows,), np.float32), first, last)
            sum_rows(byte, 128, array_at(task.row_sum, (rows,), np.int32), first, last)
            return to, 4 * step

        return to_int8

    @kernel(label=f"_{numbers}")
    def to_int16(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
        wide, step = floats_at(x, rows, product.inputs), units(product.depth)
        byte = array_at(to, (rows, 2 * step), np.int16)
        round_rows(wide, byte, array_at(task.row_scale, (rows,), np.float32), first, last)
        return to, 4 * step

    return to_int16


def _producing(numbers: str) -> Any:
    """The kernel of one product; ``numbers`` of weights and of the rows that meet them."""
    narrow, multiply, together = _narrowing(numbers), multiply_panels(numbers), tile_rows(numbers)
    units = line_units(numbers)

    @kernel(label=f"_{numbers}")
    def product(task_address, rows, x, one_address, out, me, members):  # type: ignore[no-untyped-def]
        """``out = x @ weight.T + bias``, of rows of x that members have written each in its part, or all waited for.

        All of out is there when it returns; by rows (:func:`by_rows`), a member's part of it.

        Args:
            task_address: of :data:`TASK`.
            rows: R, of x.
            x: address, float32 ``[R, I]``.
            one_address: of :data:`PRODUCT`.
            out: address, float32 ``[R, O]``, written.
            me: number of the member that calls.
            members: of the team.
        """
        task, one = task_at(task_address), product_at(one_address)
        apart, (first, last) = by_rows(task, rows, members), part_of(rows, me, members)
        state = numbers_at(task.state, STATE_SIZE)
        # By rows, a member may be a product ahead of another, whose rows of another width must not be in its way.
        offset = first * (task.narrow_step - 4 * units(one.depth)) if apart else 0
        own, step = narrow(task, rows, x, one, task.narrow + offset, first, last)
        if not apart:
            # Only attention's output was waited for: parts of all else, and of conversions, are there by now.
            if own != x or x != task.context:
                meet(state, members)
            first, last = 0, rows
        count = last - first
        begin, end = part_of(pieces(count, one.outputs, together), 0 if apart else me, 1 if apart else members)
        multiply(
            own + first * step, step, one.weight, one.depth, out + 4 * one.outputs * first, 4 * one.outputs, one.bias,
            one.scale, task.row_scale + 4 * first, task.row_sum + 4 * first, count, one.outputs, begin, end,
        )  # fmt: skip
        if not apart:
            meet(state, members)

    return product


PRODUCTS = {numbers: _producing(numbers) for numbers in numbers_here()}
"""The kernel of a product, by the numbers of its weights: see ``product``."""
