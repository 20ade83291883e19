"""Counter-based Gumbel noise: every random choice is a pure function of (seed, position, token).

Noise never comes from a global generator: the same row gives the same tokens in any batch, on any actor,
after any preemption (docs/design/verified.md: the autoregressive sample at position t is a function of
(logits, T, seed, t)). Seeds come from :mod:`wedlm_core.seeds`.

The generator is the SplitMix64 finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) applied to a per-row key plus a per-token Weyl increment.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.scalar import F32, log
from wedlm_core.kernels.cpu.vector import LANES, fma, load, store, where_less

_WEYL = np.uint64(0x9E3779B97F4A7C15)


@kernel(inline="always")
def _mix_64(x):  # type: ignore[no-untyped-def]
    """SplitMix64 finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel(inline="always")
def key_of(seed, position):  # type: ignore[no-untyped-def]
    """The key of a row's noise."""
    key = _mix_64(np.uint64(seed) * np.uint64(2) + np.uint64(1)) + np.uint64(position) * _WEYL
    return _mix_64(key)


@kernel(inline="always")
def _uniform(key, token):  # type: ignore[no-untyped-def]
    bits = _mix_64(key + np.uint64(token + 1) * _WEYL) >> np.uint64(11)
    return (np.float32(np.int64(bits)) + F32(0.5)) * F32(2.0**-53)


@kernel
def _to_gumbel(out, size):  # type: ignore[no-untyped-def]
    """From uniform numbers to noise, in place."""
    for i in range(0, size, LANES):
        u = min(load(out, i, size - i, F32(0.5)), F32(1.0 - 2.0**-24))
        # -log1p(-u): below 2^-10 by its series, since 1 - u would round u away.
        small = fma(fma(u, F32(1.0 / 3.0), F32(0.5)), u * u, u)
        waiting = where_less(u, F32(2.0**-10), small, -log(F32(1.0) - u))
        store(out, i, size - i, -log(waiting))


@kernel
def noise_from(key, begin, size, out):  # type: ignore[no-untyped-def]
    """The noise of ``size`` tokens from ``begin`` on."""
    for i in range(size):
        out[i] = _uniform(key, begin + i)
    _to_gumbel(out, size)


@kernel
def noise_of(key, tokens, first, size, out):  # type: ignore[no-untyped-def]
    """The noise of ``size`` tokens of a list, from its place ``first`` on."""
    for i in range(size):
        out[i] = _uniform(key, tokens[first + i])
    _to_gumbel(out, size)
