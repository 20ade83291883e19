"""Kernels of a forward as functions for callers in C, each compiled once: its address is given to those that call it.

A kernel on disk is found again only if it depends on no variable of an enclosing function: so each kind of numbers has
its own function here.
"""

from __future__ import annotations

import functools
from typing import Any

from wedlm_core.kernels.cpu.cached_attention import ATTENDERS, PLACERS
from wedlm_core.kernels.cpu.compiled import c_function
from wedlm_core.kernels.cpu.forward import join
from wedlm_core.kernels.cpu.forward_products import PRODUCTS

_float32: Any = PRODUCTS.get("float32")
_bfloat16: Any = PRODUCTS.get("bfloat16")
_int8: Any = PRODUCTS.get("int8")
_int16: Any = PRODUCTS.get("int16")
_bfloat16_amx: Any = PRODUCTS.get("bfloat16_amx")
_int8_amx: Any = PRODUCTS.get("int8_amx")
_place_float32, _attend_float32 = PLACERS["float32"], ATTENDERS["float32"]
_place_bfloat16, _attend_bfloat16 = PLACERS["bfloat16"], ATTENDERS["bfloat16"]
_place_int8, _attend_int8 = PLACERS["int8"], ATTENDERS["int8"]


def _join(address):  # type: ignore[no-untyped-def]
    join(address)


def _product_float32(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _float32(task, rows, x, one, out, me, members)


def _product_bfloat16(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _bfloat16(task, rows, x, one, out, me, members)


def _product_int8(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _int8(task, rows, x, one, out, me, members)


def _product_int16(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _int16(task, rows, x, one, out, me, members)


def _product_bfloat16_amx(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _bfloat16_amx(task, rows, x, one, out, me, members)


def _product_int8_amx(task, rows, x, one, out, me, members):  # type: ignore[no-untyped-def]
    _int8_amx(task, rows, x, one, out, me, members)


def _places_float32(task, layer, me, members):  # type: ignore[no-untyped-def]
    _place_float32(task, layer, me, members)


def _attends_float32(task, layer, starts, counts, cached, space, members):  # type: ignore[no-untyped-def]
    _attend_float32(task, layer, starts, counts, cached, space, members)


def _places_bfloat16(task, layer, me, members):  # type: ignore[no-untyped-def]
    _place_bfloat16(task, layer, me, members)


def _attends_bfloat16(task, layer, starts, counts, cached, space, members):  # type: ignore[no-untyped-def]
    _attend_bfloat16(task, layer, starts, counts, cached, space, members)


def _places_int8(task, layer, me, members):  # type: ignore[no-untyped-def]
    _place_int8(task, layer, me, members)


def _attends_int8(task, layer, starts, counts, cached, space, members):  # type: ignore[no-untyped-def]
    _attend_int8(task, layer, starts, counts, cached, space, members)


_PRODUCTS = {
    "float32": _product_float32,
    "bfloat16": _product_bfloat16,
    "int8": _product_int8,
    "int16": _product_int16,
    "bfloat16_amx": _product_bfloat16_amx,
    "int8_amx": _product_int8_amx,
}
_PLACERS = {"float32": _places_float32, "bfloat16": _places_bfloat16, "int8": _places_int8}
_ATTENDERS = {"float32": _attends_float32, "bfloat16": _attends_bfloat16, "int8": _attends_int8}


@functools.cache
def join_entry() -> int:
    """The address of :func:`wedlm_core.kernels.cpu.forward.join`."""
    return c_function(_join)


@functools.cache
def product_of(numbers: str) -> int:
    """The address of ``product`` in :mod:`wedlm_core.kernels.cpu.forward_products`; ``numbers`` of weights."""
    return c_function(_PRODUCTS[numbers])


@functools.cache
def place_of(held: str) -> int:
    """The address of ``place`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(_PLACERS[held])


@functools.cache
def attend_of(held: str) -> int:
    """The address of ``attend`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(_ATTENDERS[held])
