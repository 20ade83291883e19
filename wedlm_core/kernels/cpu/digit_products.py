"""Products of numbers as digits (:mod:`.digits`), by a CPU's matrix units and, of few rows, by its vectors.

Both give the same bits, as their sums are exact. A group of 16 outputs is multiplied with up to 64 rows: a part of its
weights stays in the first cache while tiles of 16 rows pass, and the next part is fetched meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.amx import configure, matrix, release
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.digits import BLOCK_INPUTS, DIGITS, GROUP, TILE, WEIGHT_DIGITS
from wedlm_core.kernels.cpu.emit import call, fetch, loop, pointer
from wedlm_core.kernels.cpu.emit import spread as in_all_lanes
from wedlm_core.kernels.cpu.scalar import F32
from wedlm_core.kernels.cpu.vector import LANES, fma, load, load_whole, store
from wedlm_core.kernels.cpu.views import floats_at

__all__ = ["FEW_ROWS", "ROWS", "multiply_digits"]

ROWS = 64
"""Most rows of a piece, which read weights from the cache together."""
FEW_ROWS = 4
"""Rows that vectors multiply."""
_PIECE_TILES, _PANEL = ROWS // TILE, 4 * GROUP
_DIGIT_BYTES = TILE * BLOCK_INPUTS  # of a digit of 16 rows or outputs in a block of inputs
_ROWS_BYTES, _BLOCK_BYTES = DIGITS * _DIGIT_BYTES, WEIGHT_DIGITS * _DIGIT_BYTES  # of a block of 16 rows, of outputs
_CHUNK = 8  # blocks of inputs whose weights stay in the first cache while all tiles of a piece pass
_AHEAD_BYTES = 1 << 14  # of weights that are fetched while a tile that is alone reads them once
_NEAR_BYTES = 1 << 20  # of rows that stay in the second cache while all weights pass
_LINE, _BLOCK_LINES, _UNIT = 64, _BLOCK_BYTES // 64, 4
_SETTINGS = 16  # of the matrix units, in units of four bytes
_TILE_SUMS = DIGITS * TILE * GROUP  # of a tile and a group
_WEIGHTS = 7  # the matrix that holds weights; 0 to 3 are sums, 4 to 6 rows
# Loads and products of a block. ``("rows", d, m)``: digit d of the rows to matrix m; the same of weights;
# ``("multiply", s, m)``: add the rows in m times the weights to the sums s, which are of ``i + j = s``. A product waits
# for the last one that added to its sums, so two to others are between them, and digit 0 of weights is loaded twice.
_TURN = (
    ("rows", 2, 4), ("weights", 0, _WEIGHTS), ("multiply", 2, 4), ("rows", 3, 5), ("multiply", 3, 5),
    ("rows", 1, 6), ("multiply", 1, 6),
    ("weights", 1, _WEIGHTS), ("multiply", 2, 6), ("multiply", 3, 4), ("rows", 0, 4), ("multiply", 1, 4),
    ("weights", 2, _WEIGHTS), ("multiply", 2, 4), ("multiply", 3, 6),
    ("weights", 0, _WEIGHTS), ("multiply", 0, 4),
)  # fmt: skip
_SIGN, _SIGNS = 0x80, 0x80808080
_BYTE, _INT, _INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_INTS = ir.VectorType(_INT, LANES)
_intrinsic: Any = intrinsic


def _turns(tiles: int) -> Any:
    """An intrinsic: a tile times a group, over some blocks of inputs.

    Beside each block it fetches its share of the weights that come next, where ``tiles`` tiles share them. What is read
    again soon goes to the first cache, and the rest past it: weights where tiles share them, else rows.
    """
    lines, stays = -(-_BLOCK_LINES // tiles), "rows" if tiles == 1 else "weights"

    @_intrinsic
    def turns(typing_context, x, weight, blocks, sums, fresh, ahead):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, weight, blocks, sums, fresh, ahead = args
            sums_at = [pointer(builder, _BYTE, sums, _INDEX(_DIGIT_BYTES * d)) for d in range(DIGITS)]
            with builder.if_else(fresh) as (begin, go_on):
                with begin:
                    for d in range(DIGITS):
                        matrix(builder, "tilezero", _BYTE(d))
                with go_on:
                    for d in range(DIGITS):
                        matrix(builder, "tileloadd64", _BYTE(d), sums_at[d], _INDEX(_LINE))

            def turn(k, _):  # type: ignore[no-untyped-def]
                rows_at, weights_at = (builder.mul(k, _INDEX(size)) for size in (_ROWS_BYTES, _BLOCK_BYTES))
                fetched = 0
                soon = builder.add(ahead, builder.mul(k, _INDEX(_LINE * lines)))
                for done, (what, which, number) in enumerate(_TURN, 1):
                    while fetched < lines * done // len(_TURN):
                        fetch(builder, pointer(builder, _BYTE, soon, _INDEX(_LINE * fetched)), level=2)
                        fetched += 1
                    if what == "multiply":
                        matrix(builder, "tdpbssd", _BYTE(which), _BYTE(number), _BYTE(_WEIGHTS))
                        continue
                    base, along = (x, rows_at) if what == "rows" else (weight, weights_at)
                    place = pointer(builder, _BYTE, base, along, _INDEX(_DIGIT_BYTES * which))
                    name = "tileloadd64" if what == stays else "tileloaddt164"
                    matrix(builder, name, _BYTE(number), place, _INDEX(_LINE))
                return []

            loop(builder, blocks, 1, [], turn)
            for d in range(DIGITS):
                matrix(builder, "tilestored64", _BYTE(d), sums_at[d], _INDEX(_LINE))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, types.boolean, types.intp), generate

    return turns


@kernel
def _finish(sums, out, out_step, bias, scale, row_scale, rows, columns):  # type: ignore[no-untyped-def]
    """Scale the sums of a tile and a group, and add the bias."""
    own, worth = floats_at(row_scale, 1, rows), F32(2.0**-8)
    scale_O = load(floats_at(scale, 1, GROUP), 0, GROUP, F32(0.0))
    bias_O = load(floats_at(bias, 1, GROUP), 0, GROUP, F32(0.0))
    for r in range(rows):
        at = sums + r * _LINE
        value = fma(load_whole(at + 3 * _DIGIT_BYTES), worth, load_whole(at + 2 * _DIGIT_BYTES))
        value = fma(fma(value, worth, load_whole(at + _DIGIT_BYTES)), worth, load_whole(at))
        store(floats_at(out + r * out_step, 1, columns), 0, columns, value * own[0, r] * scale_O + bias_O)


def _few(rows: int) -> Any:
    """An intrinsic: a few rows of a tile times a group, by vectors: the sums of matrix units, bit for bit.

    Matrix units take about as long for one row as for 16, and where others keep them busy longer than memory takes to
    give the weights.
    """
    pairs = [(i, j) for j in range(WEIGHT_DIGITS) for i in range(DIGITS - j)]
    # An instruction waits for the last one that added to the same sums: of one or two rows there are few others.
    sums_of = {pair: number if rows <= 2 else sum(pair) for number, pair in enumerate(pairs)}
    count = 1 + max(sums_of.values())

    @_intrinsic
    def few(typing_context, x, weight, blocks, sums, excess):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, weight, blocks, sums, excess = args

            def multiply(k, before):  # type: ignore[no-untyped-def]
                block, unit = builder.lshr(k, _INDEX(4)), builder.and_(k, _INDEX(15))
                line, row = (
                    builder.add(base, builder.add(builder.mul(block, _INDEX(size)), builder.mul(unit, _INDEX(step))))
                    for base, size, step in ((weight, _BLOCK_BYTES, _LINE), (x, _ROWS_BYTES, _UNIT))
                )
                after = list(before)
                for i, j in pairs:
                    if i == 0:
                        place = pointer(builder, _INTS, line, _INDEX(_DIGIT_BYTES * j))
                        signed = builder.load(place, align=4)  # the instruction multiplies unsigned by signed
                        part = builder.xor(signed, _INTS([_SIGNS] * LANES))
                        fetch(builder, pointer(builder, _BYTE, line, _INDEX(_AHEAD_BYTES + _DIGIT_BYTES * j)), level=2)
                    for r in range(rows):
                        place = pointer(builder, _INT, row, _INDEX(_DIGIT_BYTES * i + BLOCK_INPUTS * r))
                        own = in_all_lanes(builder, builder.load(place, align=4), LANES)
                        at = count * r + sums_of[i, j]
                        after[at] = call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, after[at], part, own)
                return after

            units = builder.mul(blocks, _INDEX(LANES))
            totals = loop(builder, units, 1, [_INTS([0] * LANES)] * (count * rows), multiply)
            for r in range(rows):
                for d in range(DIGITS):
                    more = builder.load(pointer(builder, _INT, excess, _INDEX(4 * (DIGITS * r + d))), align=4)
                    parts = {count * r + number for pair, number in sums_of.items() if sum(pair) == d}
                    exact = functools.reduce(builder.add, [totals[part] for part in sorted(parts)])
                    exact = builder.sub(exact, in_all_lanes(builder, more, LANES))
                    place = pointer(builder, _INTS, sums, _INDEX(_DIGIT_BYTES * d + _LINE * r))
                    builder.store(exact, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return few


_one_row, _two_rows, _three_rows, _four_rows = (_few(rows) for rows in range(1, FEW_ROWS + 1))


@_intrinsic
def _sum_of_digits(typing_context: Any, x: Any, blocks: Any) -> Any:
    """The sum of a digit of a row, from its first 64 bytes on in each block."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, blocks = args

        def add(k: Any, before: list[Any]) -> list[Any]:
            part = builder.load(pointer(builder, _INTS, x, builder.mul(k, _INDEX(_ROWS_BYTES))), align=4)
            ones = _INTS([0x01010101] * LANES)
            return [call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, before[0], ones, part)]

        (total,) = loop(builder, blocks, 1, [_INTS([0] * LANES)], add)
        return call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _INT, total)

    return types.int32(types.intp, types.intp), generate


@kernel
def _excess_of(x, blocks, rows, excess):  # type: ignore[no-untyped-def]
    """What unsigned weights add to the sums of a few rows: 128 times the digits they met; int32 ``[rows, 4]``."""
    for r in range(rows):
        for d in range(DIGITS):
            excess[r, d] = _sum_of_digits(x + d * _DIGIT_BYTES + r * BLOCK_INPUTS, blocks)
        for d in range(DIGITS - 1, -1, -1):  # the sums of i + j = d have the digits i from d - 2 to d
            total = np.int32(0)
            for i in range(max(0, d + 1 - WEIGHT_DIGITS), d + 1):
                total += excess[r, i]
            excess[r, d] = total * np.int32(_SIGN)


@kernel
def _multiply_few(x, weight, depth, out, out_step, bias, scale, row_scale, rows, outputs, first, last, kept, excess):  # type: ignore[no-untyped-def]
    """:func:`multiply_digits` of at most :data:`FEW_ROWS` rows.

    ``kept`` and ``excess`` are memory for sums, which the caller holds: a kernel lets go of an array of its own behind
    the last line that names it, though an address of it is still in use.
    """
    blocks, sums, more = depth // BLOCK_INPUTS, _line_in(kept), excess.ctypes.data
    _excess_of(x, blocks, rows, excess)
    for o in range(_PANEL * first, min(_PANEL * last, outputs), GROUP):
        group = weight + o // GROUP * blocks * _BLOCK_BYTES
        if rows == 1:
            _one_row(x, group, blocks, sums, more)
        elif rows == 2:
            _two_rows(x, group, blocks, sums, more)
        elif rows == 3:
            _three_rows(x, group, blocks, sums, more)
        else:
            _four_rows(x, group, blocks, sums, more)
        at = 4 * o
        _finish(sums, out + at, out_step, bias + at, scale + at, row_scale, rows, min(GROUP, outputs - o))


@kernel
def _line_in(kept):  # type: ignore[no-untyped-def]
    """The first address of memory at which a cache line begins."""
    return (kept.ctypes.data + _LINE - 1) // _LINE * _LINE


_one_tile, _two_tiles, _three_tiles, _four_tiles = (_turns(tiles) for tiles in range(1, _PIECE_TILES + 1))


@kernel
def _shape(settings, rows):  # type: ignore[no-untyped-def]
    """Set the matrices up for tiles of so many rows."""
    byte = settings.view(np.uint8)
    byte[0] = 1
    for number in range(8):
        byte[16 + 2 * number] = _LINE
        byte[48 + number] = TILE if number == _WEIGHTS else rows
    configure(settings.ctypes.data)


@kernel
def _chunk(x, step, weight, blocks, sums, fresh, tiles, ahead):  # type: ignore[no-untyped-def]
    """All tiles of a piece times a chunk of a group's weights.

    Args:
        x: address of the first tile's first block, and ``step`` bytes from a tile to the next.
        step: see x.
        weight: address of the first block of weights.
        blocks: of inputs.
        sums: address of the sums of all tiles.
        fresh: whether these are the first blocks.
        tiles: 1 to 4.
        ahead: address of weights to fetch, as many as these.
    """
    share = blocks * _LINE * ((_BLOCK_LINES + tiles - 1) // tiles)
    for t in range(tiles):
        rows, own, soon = x + t * step, sums + 4 * t * _TILE_SUMS, ahead + t * share
        if tiles == 1:
            _one_tile(rows, weight, blocks, own, fresh, soon)
        elif tiles == 2:
            _two_tiles(rows, weight, blocks, own, fresh, soon)
        elif tiles == 3:
            _three_tiles(rows, weight, blocks, own, fresh, soon)
        else:
            _four_tiles(rows, weight, blocks, own, fresh, soon)


@kernel
def _multiply_piece(x, x_step, group, blocks, sums, rows, end):  # type: ignore[no-untyped-def]
    """The sums of up to :data:`ROWS` rows and a group; ``end`` is behind the last weights that are read."""
    tiles = (rows + TILE - 1) // TILE
    chunk, far = (_CHUNK, _CHUNK * _BLOCK_BYTES) if tiles > 1 else (blocks, _AHEAD_BYTES)
    for k in range(0, blocks, chunk):
        many, here = min(chunk, blocks - k), group + k * _BLOCK_BYTES
        ahead = here + min(many * _BLOCK_BYTES, far)
        if ahead >= end:  # nothing comes next: what is there already
            ahead = here
        _chunk(x + k * _ROWS_BYTES, TILE * x_step, here, many, sums, k == 0, tiles, ahead)


@kernel
def _multiply_pieces(  # type: ignore[no-untyped-def]
    x, x_step, weight, depth, out, out_step, bias, scale, row_scale, rows, outputs, first, last, settings, kept
):
    """:func:`multiply_digits` by matrix units, with memory for their settings and for sums, which the caller holds."""
    parts, blocks, sums = (rows + ROWS - 1) // ROWS, depth // BLOCK_INPUTS, _line_in(kept)
    size, in_force, together = blocks * _BLOCK_BYTES, 0, max(1, _NEAR_BYTES // (ROWS * x_step))
    end = weight + _PANEL // GROUP * size * ((last - 1) // parts + 1)
    for begin in range(0, parts, together):
        for p in range(first // parts, (last - 1) // parts + 1):
            low, high = max(first - p * parts, begin), min(last - p * parts, begin + together, parts)
            for t in range(low, high):
                row, count = ROWS * t, min(ROWS, rows - ROWS * t)
                if in_force != min(count, TILE):
                    in_force = min(count, TILE)
                    _shape(settings, in_force)
                for o in range(_PANEL * p, min(_PANEL * p + _PANEL, outputs), GROUP):
                    group, at, to = weight + o // GROUP * size, 4 * o, out + row * out_step + 4 * o
                    _multiply_piece(x + row * x_step, x_step, group, blocks, sums, count, end)
                    for tile in range(0, count, TILE):
                        _finish(
                            sums + 4 * _TILE_SUMS // TILE * tile, to + tile * out_step, out_step, bias + at, scale + at,
                            row_scale + 4 * (row + tile), min(TILE, count - tile), min(GROUP, outputs - o),
                        )  # fmt: skip


@kernel
def multiply_digits(  # type: ignore[no-untyped-def]
    x, x_step, weight, depth, out, out_step, bias, scale, row_scale, row_sum, rows, outputs, first, last
):
    """:func:`wedlm_core.kernels.cpu.panels.multiply_panels` of digits.

    ``x`` is as :func:`split_rows` writes it, ``weight`` panels of four groups of 16 outputs: for each block of inputs
    the three digits, each ``[16, 16, 4]``: units of four inputs, outputs, inputs.
    """
    settings, kept = np.zeros(_SETTINGS, dtype=np.int32), np.empty(LANES + _PIECE_TILES * _TILE_SUMS, dtype=np.int32)
    if rows <= FEW_ROWS:
        excess = np.empty((rows, DIGITS), dtype=np.int32)
        _multiply_few(
            x, weight, depth, out, out_step, bias, scale, row_scale, rows, outputs, first, last, kept, excess
        )  # fmt: skip
        return
    _multiply_pieces(
        x, x_step, weight, depth, out, out_step, bias, scale, row_scale, rows, outputs, first, last, settings, kept
    )  # fmt: skip
    release()
