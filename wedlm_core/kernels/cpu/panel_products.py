"""Products of rows and packed weights, ``out = x @ weight.T + bias``, in float32, bfloat16 and int8.

A weight ``[O, I]`` is packed into panels of 64 outputs, each of two halves of 32: ``[O / 64, 2, depth, 32]`` units of
four bytes. A unit is the operand of an instruction in a lane: one float32, two bfloat16 or four int8 along the inputs
(``depth`` units in all). So few rows read the weights once, at the speed of memory, and many rows keep a half in the L2
cache. While tiles of rows are multiplied with a half, the next one is fetched, a part of it by each tile: so memory is
read all the time, not only while the first tile of a half waits for it.

Every result is one chain of additions in the order of the inputs (of whole units), whatever rows are multiplied
together. So a row's bits depend neither on the other rows nor on the threads. Sums of int8 are exact in int32 and
independent of the order anyway.

Matrices are given by the address of their first element and the bytes from one row to the next.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from wedlm_core.kernels.cpu.amx import BLOCK_ROWS, block_multiplier, has_amx, kept_sums, release
from wedlm_core.kernels.cpu.array_views import floats_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.panel_tiles import HALF, STEP, features, panel_tile
from wedlm_core.kernels.cpu.tile import address

PANEL = 64
"""Outputs of a panel."""
_PAGE_UNITS, _GAP_UNITS = 1024, 80  # of a page, and between rows of whole pages: five cache lines
_AHEAD_BYTES = 2048  # of weights that are fetched as they are read: the processor stops at each page


def numbers_here() -> tuple[str, ...]:
    """The numbers that panels can hold on this CPU: names for :func:`multiply_panels`, the fastest of each kind first.

    "int8" adds four products in one instruction (VNNI); "int16" widens int8 and adds pairs in 32 bits (AVX2). Those
    that end in "_amx" are for matrix units (:mod:`.amx`); fewer rows are multiplied by vectors that make the same bits.
    """
    wide = {"avx512f", "avx512bw"} <= features()
    found = ["float32"]
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


def numeric_kind(numbers: str) -> str:
    """The name of the number type, without "_amx"."""
    return numbers.removesuffix("_amx")


def depth_step(numbers: str) -> int:
    """Rows and panels are padded to a multiple of so many units of four bytes."""
    return STEP if numbers.endswith("_amx") else 1


@functools.cache
def line_units(numbers: str) -> Any:
    """A kernel: units of four bytes from one row to the next, of rows of ``depth`` units.

    A tile reads a number of each of its rows, then the next of each. Rows of whole pages would compete for one set of
    the L1 cache. So such rows are some lines apart; those of matrix units are not.
    """
    gap = 0 if numbers.endswith("_amx") else _GAP_UNITS

    @kernel(label=f"_{numbers}")
    def units(depth):  # type: ignore[no-untyped-def]
        return depth + (gap if depth % _PAGE_UNITS == 0 else 0)

    return units


def tile_rows(numbers: str) -> int:
    """Most rows that are multiplied together."""
    if numbers.endswith("_amx"):
        return BLOCK_ROWS
    return 12 if "avx512f" in features() else 3


def _few_rows(numbers: str) -> int:
    """Vectors multiply both halves of a panel together for at most so many rows ("_amx": while they are faster)."""
    if numbers == "bfloat16_amx":
        return 1  # with two, it takes longer than matrix units
    return 6 if "avx512f" in features() else 1


def _rows_of(numbers: str, halves: int, first: int) -> Any:
    """A kernel that calls the micro-kernel of ``first`` to ``first + 5`` rows, or of fewer where that is the most."""
    most = _few_rows(numbers) if halves == 2 else tile_rows(numbers)
    one, two, three, four, five, six = (panel_tile(numbers, min(first + i, most), halves) for i in range(6))

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
    """The memory that a tile of rows fetches: an address, and from there on so many bytes for each unit.

    Each of ``passes`` tiles its part of the half after ``part``, which has ``line`` bytes for a unit; those before,
    all of ``part`` as they read it.
    """
    if turn < 0:
        return part + _AHEAD_BYTES, line
    share = (line + passes - 1) // passes
    if is_last:  # nothing comes next: fetch this half again
        return part, share
    return part + depth * (line + turn * share), share


def _half_bytes(numbers: str) -> int:
    """Bytes of a half for one unit of a row."""
    return HALF * (2 if numbers == "int16" else 4)


def _few_multiplier(numbers: str) -> Any:
    """:func:`multiply_panels` of few rows: both halves of a panel together."""
    few, most, line = _rows_of(numbers, 2, 1), _few_rows(numbers), _half_bytes(numbers)

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
    most, few, line = tile_rows(numbers), _few_rows(numbers), _half_bytes(numbers)
    multiply_few, half = _few_multiplier(numbers), _half_multiplier(numbers)

    @kernel(label=f"_{numbers}")
    def multiply(x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last):  # type: ignore[no-untyped-def]
        if rows <= few:
            multiply_few(
                x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last
            )  # fmt: skip
            return
        tiles = (rows + most - 1) // most
        edge = np.empty((most, HALF), dtype=np.float32)
        size, there = depth * line, -1  # the half that is in the cache by now
        piece = first
        while piece < last:
            p = piece // tiles
            low, high = piece - p * tiles, min(last - p * tiles, tiles)
            piece += high - low
            for number in range(2 * p, 2 * p + 2):
                part, to, left = weight + number * size, 4 * HALF * number, outputs - HALF * number
                if left <= 0:
                    break
                own = 0 if number == there else 1
                passes, is_last = high - low - own, number % 2 == 1 and piece >= last
                for t in range(low, high):
                    begin, end = rows * t // tiles, rows * (t + 1) // tiles
                    ahead, ahead_step = _to_fetch(t - low - own, passes, part, depth, line, is_last)
                    target, step = out + begin * out_step + to, out_step
                    if left < HALF:
                        target, step = address(edge), 4 * HALF
                    half(
                        x + begin * x_step, x_step, part, depth, ahead, ahead_step, target, step, bias + to, scale + to,
                        row_scale + 4 * begin, row_sum + 4 * begin, end - begin,
                    )  # fmt: skip
                    if left < HALF:
                        _copy_edge(edge, out + begin * out_step + to, out_step, end - begin, left)
                if passes > 0:
                    there = number + 1

    return multiply


def _amx_multiplier(numbers: str) -> Any:
    """See :func:`multiply_panels`."""
    kind, most = numeric_kind(numbers), tile_rows(numbers)
    block = block_multiplier(kind)
    # Vectors may add exact terms in any order, and otherwise add in the order of matrix units.
    few, multiply_few = _few_rows(numbers), _few_multiplier(kind if kind == "int8" else numbers)

    @kernel(label=f"_{numbers}")
    def multiply(x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last):  # type: ignore[no-untyped-def]
        if rows <= few:
            multiply_few(
                x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last
            )  # fmt: skip
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
    """The number of pieces of a product for threads to share, if ``most`` rows are multiplied together."""
    return (outputs + PANEL - 1) // PANEL * ((rows + most - 1) // most)


def multiply_panels(numbers: str) -> Any:
    """The kernel of products with panels of these numbers (:func:`numbers_here`).

    Its arguments, addresses and counts (int64):

    - x, x_step: rows, in units (int8: four bytes; bfloat16 and int16: two numbers), zero after the inputs.
    - weight, depth: panels, and units of a row.
    - out, out_step: float32 rows, written.
    - bias: float32, zeros where there is none, like scale as long as the panels.
    - scale: float32, of each output (integers only, as the next one).
    - row_scale: float32, of each row.
    - row_sum: int32, 128 times the sum of each row's numbers (int8 only).
    - rows, outputs: of the product.
    - first, last: pieces to compute; each panel has one for every :func:`tile_rows` rows or fewer (:func:`pieces`).

    With "_amx", ``depth`` is a multiple of :func:`depth_step`.
    """
    return _MULTIPLIERS[numbers]


def _multiplier_of(numbers: str) -> Any:
    return _amx_multiplier(numbers) if numbers.endswith("_amx") else _multiplier(numbers)


_MULTIPLIERS = {numbers: _multiplier_of(numbers) for numbers in numbers_here()}
