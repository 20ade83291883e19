"""The compiled forward as functions for callers in C, one for each pair of numbers."""

from __future__ import annotations

import functools
from typing import Any

from wedlm_core.kernels.cpu.compiled import c_function
from wedlm_core.kernels.cpu.forward import JOINED

__all__ = ["entry_of"]

_float32: Any = JOINED.get(("float32", "float32"))
_bfloat16: Any = JOINED.get(("bfloat16", "float32"))
_int8: Any = JOINED.get(("int8", "float32"))
_int16: Any = JOINED.get(("int16", "float32"))
_bfloat16_amx: Any = JOINED.get(("bfloat16_amx", "float32"))
_int8_amx: Any = JOINED.get(("int8_amx", "float32"))
_float32_amx: Any = JOINED.get(("float32_amx", "float32"))
_float32_kv_bfloat16: Any = JOINED.get(("float32", "bfloat16"))
_bfloat16_kv_bfloat16: Any = JOINED.get(("bfloat16", "bfloat16"))
_int8_kv_bfloat16: Any = JOINED.get(("int8", "bfloat16"))
_int16_kv_bfloat16: Any = JOINED.get(("int16", "bfloat16"))
_bfloat16_amx_kv_bfloat16: Any = JOINED.get(("bfloat16_amx", "bfloat16"))
_int8_amx_kv_bfloat16: Any = JOINED.get(("int8_amx", "bfloat16"))
_float32_amx_kv_bfloat16: Any = JOINED.get(("float32_amx", "bfloat16"))
_float32_kv_int8: Any = JOINED.get(("float32", "int8"))
_bfloat16_kv_int8: Any = JOINED.get(("bfloat16", "int8"))
_int8_kv_int8: Any = JOINED.get(("int8", "int8"))
_int16_kv_int8: Any = JOINED.get(("int16", "int8"))
_bfloat16_amx_kv_int8: Any = JOINED.get(("bfloat16_amx", "int8"))
_int8_amx_kv_int8: Any = JOINED.get(("int8_amx", "int8"))
_float32_amx_kv_int8: Any = JOINED.get(("float32_amx", "int8"))


# A function for each: what is kept on disk is found again only if it depends on no variable of an enclosing function.
def run_float32(address):  # type: ignore[no-untyped-def]
    """Compute a task as one of its members.

    Args:
        address: of three int64: of the task, the number of the member, and how many there are.
    """
    _float32(address)


def run_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32` with rows and weights of products in bfloat16."""
    _bfloat16(address)


def run_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32` with rows and weights of products in int8."""
    _int8(address)


def run_int16(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8` on CPUs that multiply no int8: they are widened."""
    _int16(address)


def run_bfloat16_amx(address):  # type: ignore[no-untyped-def]
    """:func:`run_bfloat16` by matrix units."""
    _bfloat16_amx(address)


def run_int8_amx(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8` by matrix units, where rows are not few."""
    _int8_amx(address)


def run_float32_amx(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32` by matrix units, on digits."""
    _float32_amx(address)


def run_float32_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32` with keys and values in bfloat16."""
    _float32_kv_bfloat16(address)


def run_bfloat16_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_bfloat16` with keys and values in bfloat16."""
    _bfloat16_kv_bfloat16(address)


def run_int8_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8` with keys and values in bfloat16."""
    _int8_kv_bfloat16(address)


def run_int16_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_int16` with keys and values in bfloat16."""
    _int16_kv_bfloat16(address)


def run_bfloat16_amx_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_bfloat16_amx` with keys and values in bfloat16."""
    _bfloat16_amx_kv_bfloat16(address)


def run_int8_amx_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8_amx` with keys and values in bfloat16."""
    _int8_amx_kv_bfloat16(address)


def run_float32_amx_kv_bfloat16(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32_amx` with keys and values in bfloat16."""
    _float32_amx_kv_bfloat16(address)


def run_float32_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32` with keys and values in int8."""
    _float32_kv_int8(address)


def run_bfloat16_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_bfloat16` with keys and values in int8."""
    _bfloat16_kv_int8(address)


def run_int8_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8` with keys and values in int8."""
    _int8_kv_int8(address)


def run_int16_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_int16` with keys and values in int8."""
    _int16_kv_int8(address)


def run_bfloat16_amx_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_bfloat16_amx` with keys and values in int8."""
    _bfloat16_amx_kv_int8(address)


def run_int8_amx_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_int8_amx` with keys and values in int8."""
    _int8_amx_kv_int8(address)


def run_float32_amx_kv_int8(address):  # type: ignore[no-untyped-def]
    """:func:`run_float32_amx` with keys and values in int8."""
    _float32_amx_kv_int8(address)


_FUNCTIONS = {
    "float32": {"float32": run_float32, "bfloat16": run_float32_kv_bfloat16, "int8": run_float32_kv_int8},
    "bfloat16": {"float32": run_bfloat16, "bfloat16": run_bfloat16_kv_bfloat16, "int8": run_bfloat16_kv_int8},
    "int8": {"float32": run_int8, "bfloat16": run_int8_kv_bfloat16, "int8": run_int8_kv_int8},
    "int16": {"float32": run_int16, "bfloat16": run_int16_kv_bfloat16, "int8": run_int16_kv_int8},
    "bfloat16_amx": {
        "float32": run_bfloat16_amx,
        "bfloat16": run_bfloat16_amx_kv_bfloat16,
        "int8": run_bfloat16_amx_kv_int8,
    },
    "float32_amx": {
        "float32": run_float32_amx,
        "bfloat16": run_float32_amx_kv_bfloat16,
        "int8": run_float32_amx_kv_int8,
    },
    "int8_amx": {"float32": run_int8_amx, "bfloat16": run_int8_amx_kv_bfloat16, "int8": run_int8_amx_kv_int8},
}


@functools.cache
def entry_of(numbers: str, held: str = "float32") -> int:
    """The address of the compiled function of two kinds of numbers: ``void (int64 address)``, as in C.

    Args:
        numbers: of weights.
        held: of keys and values, float32, bfloat16 or int8.
    """
    return c_function(_FUNCTIONS[numbers][held])
