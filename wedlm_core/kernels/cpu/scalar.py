"""Arithmetic of the kernels, for numbers and vectors: fused multiply-add, exponential, logarithm."""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.vector import LANES, floor, fma, split, two_to

__all__ = ["F32", "LANES", "exp", "fma", "log"]

F32 = np.float32


@kernel(inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """``exp(x)`` for x in [-87, 88], to 1 part in 10^7 (Cody and Waite's reduction, a minimax polynomial).

    ``x`` is a number or a vector, here and in :func:`log`.
    """
    k = floor(fma(x, F32(1.44269504), F32(0.5)))
    r = fma(k, F32(2.12194440e-4), fma(k, F32(-0.693359375), x))
    p = fma(F32(1.9875691500e-4), r, F32(1.3981999507e-3))
    p = fma(p, r, F32(8.3334519073e-3))
    p = fma(p, r, F32(4.1665795894e-2))
    p = fma(p, r, F32(1.6666665459e-1))
    p = fma(p, r, F32(5.0000001201e-1))
    p = fma(p, r * r, r + F32(1.0))
    return p * two_to(k)


@kernel(inline="always")
def log(x):  # type: ignore[no-untyped-def]
    """``log(x)`` for normal x > 0, to 1 part in 10^7 (the mantissa in [1/sqrt 2, sqrt 2), a minimax polynomial)."""
    power, mantissa = split(x)
    m = mantissa - F32(1.0)
    p = fma(F32(7.0376836292e-2), m, F32(-1.1514610310e-1))
    p = fma(p, m, F32(1.1676998740e-1))
    p = fma(p, m, F32(-1.2420140846e-1))
    p = fma(p, m, F32(1.4249322787e-1))
    p = fma(p, m, F32(-1.6668057665e-1))
    p = fma(p, m, F32(2.0000714765e-1))
    p = fma(p, m, F32(-2.4999993993e-1))
    p = fma(p, m, F32(3.3333331174e-1))
    square = m * m
    low = fma(power, F32(-2.12194440e-4), fma(F32(-0.5), square, m * square * p))
    return fma(power, F32(0.693359375), m + low)
