"""Filters of one row of logits, and the choice among the tokens that stay. No row is sorted.

Oracle: ``testing.engine.oracle.kept``. The k-th value is found by radix selection over the bits of
the values, so it is exact. Probabilities are integers, 2 ** -44 of the most likely token's each, so their sum is the
same in any order; top-p keeps tokens until that sum reaches p of the total.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.noise import noise_of
from wedlm_core.kernels.cpu.scalar import F32, exp
from wedlm_core.kernels.cpu.vector import LANES, largest, load, spread, store

BLOCK = 64
"""Tokens whose largest value is kept: a block without a token that may stay is not looked at again."""

_INFINITY = F32(np.inf)
_UNIT = np.float64(2.0**44)
"""Units of mass of the most likely token: a vocabulary of 2 ** 18 sums to less than 2 ** 63."""
_LEAST = F32(-30.5)
"""Below this difference to the largest value a token weighs less than a unit."""
_STEPS, _BINS = F32(16.0), 512
"""Bins of a nat, and of all values that weigh anything."""


@kernel(inline="always")
def _key(bits):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an integer of the same order."""
    return bits ^ (np.uint32(0xFFFFFFFF) if bits >> np.uint32(31) else np.uint32(0x80000000))


@kernel(inline="always")
def _value(key, one):  # type: ignore[no-untyped-def]
    """The float32 of a key; ``one``: uint32 ``[1]``, overwritten."""
    one[0] = key ^ (np.uint32(0x80000000) if key >> np.uint32(31) else np.uint32(0xFFFFFFFF))
    return one.view(np.float32)[0]


@kernel(inline="always")
def _units(mass):  # type: ignore[no-untyped-def]
    return np.int64(np.float64(mass) * _UNIT)


@kernel(inline="always")
def _bin(depth):  # type: ignore[no-untyped-def]
    """The bin of a value, by its difference to the largest one."""
    return np.int64(-depth * _STEPS)


@kernel
def heated(logits, at, size, heat, scaled, tops):  # type: ignore[no-untyped-def]
    """Write ``logits / heat`` of ``size`` tokens, and the largest of each :data:`BLOCK`; the largest of all.

    ``at``: the place of the first logit.
    """
    best = F32(-np.inf)
    for block in range((size + BLOCK - 1) // BLOCK):
        lanes, begin = spread(F32(-np.inf)), block * BLOCK
        for i in range(begin, min(begin + BLOCK, size), LANES):
            # Adding 0 makes -0 the same bits as 0, which is equal to it.
            value = load(logits, at + i, size - i, F32(-np.inf)) / heat + F32(0.0)
            store(scaled, i, size - i, value)
            lanes = max(lanes, value)
        tops[block] = largest(lanes)
        best = max(best, tops[block])
    return best


@kernel
def restrict(scaled, tops, bits, line):  # type: ignore[no-untyped-def]
    """Make values of tokens whose bits are 0 -inf, and ``tops`` again; the largest value that is left."""
    best = -_INFINITY
    for block in range(len(tops)):
        top = -_INFINITY
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(scaled))):
            if (bits[line, i >> 5] >> np.uint32(i & 31)) & np.uint32(1) == np.uint32(0):
                scaled[i] = -_INFINITY
            top = max(top, scaled[i])
        tops[block] = top
        best = max(best, top)
    return best


@kernel
def _boundary(bits, weights, places, count, target):  # type: ignore[no-untyped-def]
    """The key where the weights of ``count`` places, the largest value first, sum to ``target``; and those before.

    Args:
        bits: uint32 ``[V]``, the values.
        weights: float32 ``[V]``, of which :func:`_units` count; empty where each place counts 1.
        places: int32, overwritten.
        count: how many.
        target: at most the sum of all weights.
    """
    histogram = np.empty(256, dtype=np.int64)
    prefix, above, counts_one = np.uint32(0), np.int64(0), len(weights) == 0
    for level in range(4):
        shift = np.uint32(24 - 8 * level)
        histogram[:] = 0
        for n in range(count):
            weight = np.int64(1) if counts_one else _units(weights[places[n]])
            histogram[(_key(bits[places[n]]) >> shift) & np.uint32(255)] += weight
        digit = 255
        while digit > 0 and above + histogram[digit] < target:
            above += histogram[digit]
            digit -= 1
        prefix |= np.uint32(digit) << shift
        kept = 0
        for n in range(count):
            place = places[n]
            places[kept] = place
            kept += 1 if (_key(bits[place]) >> shift) & np.uint32(255) == np.uint32(digit) else 0
        count = kept
    return prefix, above


@kernel
def _gather(scaled, tops, size, edge, equal, places):  # type: ignore[no-untyped-def]
    """Write the places of values above ``edge``, and of the first ``equal`` that are equal to it, but not -inf."""
    count = 0
    for block in range(len(tops)):
        if tops[block] < edge or tops[block] == -_INFINITY:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, size)):
            value = scaled[i]
            if value == edge:
                equal -= 1
            places[count] = i
            count += 1 if value > edge or (value == edge and equal >= 0 and value > -_INFINITY) else 0
    return count


@kernel
def _kth(scaled, tops, size, floor, k, places, one):  # type: ignore[no-untyped-def]
    """The k-th largest value, or ``floor`` if that is larger."""
    nothing = np.empty(0, dtype=np.float32)
    if k <= len(tops):  # k blocks have a value of at least the k-th largest of their largest
        for block in range(len(tops)):
            places[block] = block
        key, _ = _boundary(tops.view(np.uint32), nothing, places, len(tops), k)
        floor = max(floor, _value(key, one))
    count = _gather(scaled, tops, size, floor, size, places)
    if count <= k:
        return floor
    key, _ = _boundary(scaled.view(np.uint32), nothing, places, count, k)
    return _value(key, one)


@kernel
def _weigh(scaled, tops, size, floor, best, mass, histogram):  # type: ignore[no-untyped-def]
    """Write the weights of values from ``floor`` on, add them up by :func:`_bin`, and return the total."""
    total = np.int64(0)
    histogram[:] = 0
    for block in range(len(tops)):
        if tops[block] < floor or tops[block] - best < _LEAST:
            continue
        begin, end = block * BLOCK, min(block * BLOCK + BLOCK, size)
        for i in range(begin, end, LANES):
            store(mass, i, size - i, exp(max(load(scaled, i, size - i, F32(0.0)) - best, F32(-87.0))))
        for i in range(begin, end):
            if scaled[i] >= floor and scaled[i] - best >= _LEAST:
                weight = _units(mass[i])
                total += weight
                histogram[_bin(scaled[i] - best)] += weight
    return total


@kernel
def _nucleus(scaled, tops, size, floor, best, top_p, mass, places, one):  # type: ignore[no-untyped-def]
    """The least likely value of the smallest set whose mass reaches ``top_p``, and how many of that value are in it."""
    histogram = np.empty(_BINS, dtype=np.int64)
    total = _weigh(scaled, tops, size, floor, best, mass, histogram)
    target, above, number = max(np.int64(np.ceil(np.float64(total) * np.float64(top_p))), np.int64(1)), np.int64(0), 0
    while number < _BINS - 1 and above + histogram[number] < target:
        above += histogram[number]
        number += 1
    count, low = 0, max(floor, best - F32(number + 2) / _STEPS)
    for block in range(len(tops)):
        if tops[block] < low:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, size)):
            places[count] = i
            depth = scaled[i] - best
            count += 1 if scaled[i] >= floor and depth >= _LEAST and _bin(depth) == number else 0
    if count == 0:  # values that are no numbers
        return floor, size
    key, more = _boundary(scaled.view(np.uint32), mass, places, count, target - above)
    edge = _value(key, one)
    weight = max(_units(exp(max(edge - best, F32(-87.0)))), np.int64(1))
    return edge, (target - above - more + weight - 1) // weight


@kernel
def keep(scaled, tops, best, min_log, top_k, top_p, mass, places):  # type: ignore[no-untyped-def]
    """Write the places of tokens that the filters of a row keep, ascending; how many.

    Args:
        scaled: float32 ``[V]``, by :func:`heated`.
        tops: float32, by :func:`heated`.
        best: largest of ``scaled``.
        min_log: logarithm of min-p; -inf keeps all.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        mass: float32 ``[V]``, overwritten.
        places: int32 ``[V]``, written.
    """
    one, size = np.empty(1, dtype=np.uint32), len(scaled)
    edge, equal = best + min_log, size
    if 0 < top_k < size:
        edge = _kth(scaled, tops, size, edge, top_k, places, one)
    if top_p < F32(1.0):
        edge, equal = _nucleus(scaled, tops, size, edge, best, top_p, mass, places, one)
    return _gather(scaled, tops, size, edge, equal, places)


@kernel
def largest_places(scaled, tops, most, places):  # type: ignore[no-untyped-def]
    """Write the places of the ``most`` largest values, and of those equal to the last; how many, ascending."""
    edge = _kth(scaled, tops, len(scaled), -_INFINITY, most, places, np.empty(1, dtype=np.uint32))
    return _gather(scaled, tops, len(scaled), edge, len(scaled), places)


@kernel
def sample_kept(scaled, places, count, key, noise):  # type: ignore[no-untyped-def]
    """The first place whose value plus noise is largest; ``noise``: float32 ``[16]``, overwritten."""
    token, top = 0 if count == 0 else places[0], F32(-np.inf)
    for first in range(0, count, LANES):
        many = min(LANES, count - first)
        noise_of(key, places, first, many, noise)
        for n in range(many):
            value = scaled[places[first + n]] + noise[n]
            if value > top:
                token, top = places[first + n], value
    return token
