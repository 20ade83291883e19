"""Products of blocks of rows and panels by the matrix units of a CPU (Intel's AMX), in int8 and bfloat16.

One instruction multiplies up to 16 rows by 16 outputs over 64 bytes of the inputs. It reads the layout of panels
(:mod:`.panel_products`): 16 units of a half are one of its matrices, 128 bytes from row to row. A row's result has one
order of additions, whatever rows are multiplied together; in bfloat16 it is not that of other panels, but one that
vectors can keep as well (:mod:`.panel_tiles`).
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.array_views import floats_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.emit import call, fetch, loop, pointer
from wedlm_core.kernels.cpu.panel_tiles import STEP, fetch_results, result_writer

BLOCK_ROWS = 32
"""Most rows of a block."""
_TILE, _PANEL, _LINE = 16, 64, 128  # rows or outputs of a matrix; outputs of a panel; bytes between units of a half
_AHEAD = 64  # units of weights that are fetched before they are read: at each page the processor's own guess ends
_SUMS_LINE = 4 * _PANEL  # bytes between rows of sums
_SETTINGS, _IN_FORCE, _SUMS = 64, 16, 32  # bytes of settings; where kept memory has their row count, and its sums
_BYTE, _INDEX = ir.IntType(8), ir.IntType(64)
_VOID, _POINTER = ir.VoidType(), ir.IntType(8).as_pointer()
_ASK, _PERMISSION, _MATRIX_DATA = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
_intrinsic: Any = intrinsic


@functools.cache
def has_amx() -> bool:
    """Whether this CPU has matrix units for int8 and bfloat16, and the system lets this process use them."""
    there = llvmlite.binding.get_host_cpu_features()
    if sys.platform != "linux" or not all(there.get(name) for name in ("amx-tile", "amx-int8", "amx-bf16")):
        return False
    return ctypes.CDLL(None).syscall(_ASK, _PERMISSION, _MATRIX_DATA) == 0  # Linux saves their state only if asked to


def matrix(builder: Any, name: str, *args: Any) -> None:
    """Call an instruction of the matrix units."""
    call(builder, f"llvm.x86.{name}", _VOID, *args)


@_intrinsic
def configure(typing_context: Any, settings: Any) -> Any:
    """Take over the shapes of the eight matrices from 64 bytes at an address. All become zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        matrix(builder, "ldtilecfg", builder.inttoptr(args[0], _POINTER))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@_intrinsic
def release(typing_context: Any) -> Any:
    """Give the matrices back: threads are switched faster without."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        matrix(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _block(numbers: str, tall: bool) -> Any:
    """An intrinsic: sums of up to 16 rows and 64 outputs, or with ``tall`` of up to 32 rows and 32 outputs.

    Matrices 0 to 3 are sums, 4 and 5 rows, 6 and 7 (without ``tall`` 5 too) weights. Meanwhile later weights are
    fetched: after a half those of the other half, or of the next panel where halves are read together.
    """
    instruction = "tdpbf16ps" if numbers == "bfloat16" else "tdpbsud"  # weights are unsigned, see .panels
    row_tiles = (4, 5) if tall else (4,)
    weight_tiles = (6, 7) if tall else (5, 6, 7, 6)

    @_intrinsic
    def block(typing_context, x, x_step, panel, depth, sums):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_step, panel, depth, sums = args
            half_bytes = builder.mul(depth, _INDEX(_LINE))
            under, skipped = builder.mul(x_step, _INDEX(_TILE)), _INDEX(0) if tall else half_bytes
            for tile in range(4):
                matrix(builder, "tilezero", _BYTE(tile))

            def multiply(k, _):  # type: ignore[no-untyped-def]
                along, line = builder.mul(k, _INDEX(4)), builder.mul(k, _INDEX(_LINE))
                later = builder.add(k, _INDEX(_AHEAD))
                beyond = builder.select(builder.icmp_signed(">=", later, depth), skipped, _INDEX(0))
                for i, tile in enumerate(row_tiles):
                    place = pointer(builder, _BYTE, x, along, *([under] if i else []))
                    matrix(builder, "tileloadd64", _BYTE(tile), place, x_step)
                for i, tile in enumerate(weight_tiles):
                    offsets = (line, _INDEX(4 * _TILE * (i % 2)), *([half_bytes] if i > 1 else []))
                    place = pointer(builder, _BYTE, panel, *offsets)
                    for unit in range(_AHEAD, _AHEAD + STEP):
                        soon = pointer(builder, _BYTE, panel, *offsets, beyond, _INDEX(_LINE * unit))
                        fetch(builder, soon, level=2)
                    matrix(builder, "tileloadd64", _BYTE(tile), place, _INDEX(_LINE))
                    for r, rows in enumerate(row_tiles):
                        matrix(builder, instruction, _BYTE(2 * r + i if tall else i), _BYTE(rows), _BYTE(tile))
                return []

            loop(builder, depth, STEP, [], multiply)
            for tile in range(4):
                offset = tile // 2 * _TILE * _SUMS_LINE + tile % 2 * 4 * _TILE if tall else tile * 4 * _TILE
                place = pointer(builder, _BYTE, sums, _INDEX(offset))
                matrix(builder, "tilestored64", _BYTE(tile), place, _INDEX(_SUMS_LINE))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return block


@kernel
def kept_sums():  # type: ignore[no-untyped-def]
    """Memory of a thread for :func:`block_multiplier`: the shapes in force, a block's sums, a last panel's results."""
    return np.zeros(_SUMS + 2 * BLOCK_ROWS * _PANEL, dtype=np.int32)


@kernel
def _shape(kept, rows):  # type: ignore[no-untyped-def]
    """Set the matrices up for blocks of so many rows, if they are not."""
    if kept[_IN_FORCE] == rows:
        return
    kept[_IN_FORCE] = rows
    first, second = min(rows, _TILE), max(0, rows - _TILE)
    settings = kept[:_IN_FORCE].view(np.uint8)
    settings[0] = 1
    for tile in range(8):
        many = _TILE
        if tile < 4:
            many = first if tile < 2 or second == 0 else second
        elif tile == 4:
            many = first
        elif tile == 5 and second > 0:
            many = second
        settings[16 + 2 * tile] = 4 * _TILE
        settings[48 + tile] = many
    configure(kept.ctypes.data)


def block_multiplier(numbers: str) -> Any:
    """A kernel: a block of rows times a panel, in "int8" or "bfloat16".

    Arguments are as in :func:`wedlm_core.kernels.cpu.panel_products.multiply_panels` for 1 to :data:`BLOCK_ROWS` rows:
    ``panel`` is the address of a panel, ``columns`` the number of its outputs, and memory comes from :func:`kept_sums`.
    """
    wide, tall, write = _block(numbers, False), _block(numbers, True), result_writer(numbers, _PANEL)

    @kernel(label=f"_{numbers}")
    def multiply(x, x_step, panel, depth, out, out_step, bias, scale, row_scale, row_sum, rows, columns, kept):  # type: ignore[no-untyped-def]
        fetch_results(out, out_step, rows)
        _shape(kept, rows)
        sums = kept.ctypes.data + 4 * _SUMS
        if rows <= _TILE:
            wide(x, x_step, panel, depth, sums)
        else:
            tall(x, x_step, panel, depth, sums)
            tall(x, x_step, panel + depth * _LINE, depth, sums + 2 * _PANEL)
        if columns == _PANEL:
            write(sums, out, out_step, bias, scale, row_scale, row_sum, rows)
            return
        edge = sums + BLOCK_ROWS * _SUMS_LINE
        write(sums, edge, _SUMS_LINE, bias, scale, row_scale, row_sum, rows)
        for r in range(rows):
            floats_at(out + r * out_step, 1, columns)[:] = floats_at(edge + r * _SUMS_LINE, 1, columns)

    return multiply
