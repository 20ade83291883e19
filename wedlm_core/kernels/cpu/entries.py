"""Kernels of a forward as functions for callers in C, each compiled once and given to its callers as an address."""

from __future__ import annotations

import functools

from wedlm_core.kernels.cpu.cached_attention import ATTENDERS, PLACERS
from wedlm_core.kernels.cpu.compiled import c_function
from wedlm_core.kernels.cpu.forward import join
from wedlm_core.kernels.cpu.forward_products import PRODUCTS


@functools.cache
def join_entry() -> int:
    """The address of :func:`wedlm_core.kernels.cpu.forward.join`."""
    return c_function(join)


@functools.cache
def product_of(numbers: str) -> int:
    """The address of ``product`` in :mod:`wedlm_core.kernels.cpu.forward_products`; ``numbers`` of weights."""
    return c_function(PRODUCTS[numbers])


@functools.cache
def place_of(held: str) -> int:
    """The address of ``place`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(PLACERS[held])


@functools.cache
def attend_of(held: str) -> int:
    """The address of ``attend`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(ATTENDERS[held])
