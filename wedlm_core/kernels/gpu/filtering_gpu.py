"""Filters of one row of logits on a GPU (Triton): which is the least likely token that stays. No row is sorted.

Keeps the same tokens as :mod:`wedlm_core.kernels.cpu.filtering`: values are compared by their bits, probabilities are
integers, 2 ** -44 of the most likely token's each, so their sum is the same in any order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.gpu.adjusting_gpu import edited

_UNIT = tl.constexpr(float(2**44))
_LEAST = tl.constexpr(-30.5)  # below this difference to the largest value a token weighs less than a unit
_LOWEST = tl.constexpr(-2139095041)  # the key of -inf


@triton.jit
def key_of(value):  # type: ignore[no-untyped-def]
    """The bits of float32 values as int32 of the same order; -0 is 0."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):  # type: ignore[no-untyped-def]
    """The float32 values of keys (int32)."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    """:func:`wedlm_core.kernels.cpu.scalar.exp`, bit for bit."""
    k = tl.floor(tl.fma(x, 1.44269504, 0.5))
    r = tl.fma(k, 2.12194440e-4, tl.fma(k, -0.693359375, x))
    p = tl.fma(r, 1.9875691500e-4, 1.3981999507e-3)
    p = tl.fma(p, r, 8.3334519073e-3)
    p = tl.fma(p, r, 4.1665795894e-2)
    p = tl.fma(p, r, 1.6666665459e-1)
    p = tl.fma(p, r, 5.0000001201e-1)
    p = tl.fma(p, r * r, r + 1.0)
    return p * ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scaled_tile(row, token, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of tokens of a row, edited, over its temperature; -inf for forbidden tokens.

    Args:
        row: pointer to its logits, their number, temperature, whether the mask token and ids after the vocabulary's end
            are hidden, mask token, vocabulary's end, plane of edits (with ``ADJUSTED``; see :mod:`.adjusting_gpu`), and
            its bits and line (with ``ALLOWED``; see :func:`.sampling.reduce_tiles`).
        token: int32, ids.
        ADJUSTED: whether there are edits.
        ALLOWED: whether the row may be restricted.
    """
    logits_ptr, vocab, heat, hidden, mask_token, vocab_limit, plane_ptr, bits_ptr, line = row
    x = tl.load(logits_ptr + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    if ADJUSTED:
        x = edited(plane_ptr, token, token < vocab, x)
    x = tl.where(hidden & ((token >= vocab_limit) | (token == mask_token)), -float("inf"), x)
    if ALLOWED:
        word = tl.load(bits_ptr + token // 32, mask=(token < vocab) & (line >= 0), other=0)
        may = (((word >> (token % 32)) & 1) != 0) | (token == -2 - line) | (line == -1)
        x = tl.where(may, x, -float("inf"))
    return tl.where(x != x, -float("inf"), tl.div_rn(x, tl.zeros_like(x) + heat))


@triton.jit
def _weights(value, best, WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of values up to ``best``, int64: 1 each, or units of probability."""
    if WEIGHTED:
        return (exp(tl.maximum(value - best, -87.0)) * _UNIT).to(tl.int64)
    return tl.full(value.shape, 1, tl.int64)


@triton.jit
def _reached(key, weight, low, high, need):  # type: ignore[no-untyped-def]
    """The largest number from ``low`` up to before ``high`` so that weights of keys from there on sum to ``need``."""
    while high - low > 1:
        middle = low + (high - low) // 2
        if tl.sum(tl.where(key >= middle, weight, 0), axis=0) >= need:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _edge(  # type: ignore[no-untyped-def]
    row, best, low, amount, list_ptr, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr, WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The least key of the most likely tokens that are enough; and the weight needed, and the weight above that key.

    The range of keys is quartered until a tile has room for all tokens in it.

    Args:
        row: as for :func:`scaled_tile`.
        best: the largest value.
        low: int64, no token with a smaller key is looked at.
        amount: tokens that are enough, or with ``WEIGHTED`` the share (float32) of the probability of all.
        list_ptr: int32 ``[TILE]``, overwritten.
        ADJUSTED: as for :func:`scaled_tile`.
        ALLOWED: likewise.
        WEIGHTED: whether tokens count by their probability.
        TILE: tokens of a tile.
    """
    lane, tiles = tl.arange(0, TILE), tl.cdiv(row[1], TILE)
    high = key_of(best).to(tl.int64) + 1
    above, need, count = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64), tl.full((), 0, tl.int32)
    tl.debug_barrier()
    while (need == 0) | ((count > TILE) & (high - low > 1)):
        width = high - low
        one, two, three = low + width // 4, low + width // 2, low + width * 3 // 4
        all_ = tl.zeros((TILE,), tl.int64)
        most, half, some = all_, all_, all_
        count = tl.full((), 0, tl.int32)
        for tile in range(tiles):
            value = scaled_tile(row, tile * TILE + lane, ADJUSTED, ALLOWED)
            key = key_of(value)
            inside = (key >= low) & (key < high) & (key > _LOWEST)
            if WEIGHTED:
                inside = inside & (value - best >= _LEAST)
            found = tl.sum(inside.to(tl.int32), axis=0)
            if found > 0:
                place = count + tl.cumsum(inside.to(tl.int32), axis=0) - 1
                tl.store(list_ptr + place, key, mask=inside & (place < TILE))
                count += found
                weight = tl.where(inside, _weights(value, best, WEIGHTED), 0)
                all_ += weight
                most += tl.where(key >= one, weight, 0)
                half += tl.where(key >= two, weight, 0)
                some += tl.where(key >= three, weight, 0)
        if need == 0:
            total = tl.sum(all_, axis=0)
            if WEIGHTED:
                need = tl.ceil(total.to(tl.float64) * amount.to(tl.float64)).to(tl.int64)
            else:
                need = tl.minimum(total, amount)
            need = tl.maximum(need, 1)
        if count > TILE:
            in_most, in_half = above + tl.sum(most, axis=0), above + tl.sum(half, axis=0)
            in_some = above + tl.sum(some, axis=0)
            if in_some >= need:
                low = three
            elif in_half >= need:
                low, high, above = two, three, in_some
            elif in_most >= need:
                low, high, above = one, two, in_half
            else:
                high, above = one, in_most
    if count <= TILE:
        tl.debug_barrier()
        key = tl.load(list_ptr + lane, mask=lane < count, other=_LOWEST)
        weight = tl.where(lane < count, _weights(value_of(key), best, WEIGHTED), 0)
        low = _reached(key, weight, low, high, need - above)
        above += tl.sum(tl.where(key > low, weight, 0), axis=0)
    return low, need, above


@triton.jit
def largest_keys(row, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest key of each lane, int32 ``[TILE]``; arguments as for :func:`edge_of`."""
    key = tl.full((TILE,), _LOWEST, tl.int32)
    for tile in range(tl.cdiv(row[1], TILE)):
        key = tl.maximum(key, key_of(scaled_tile(row, tile * TILE + tl.arange(0, TILE), ADJUSTED, ALLOWED)))
    return key


@triton.jit
def top_k_edge(  # type: ignore[no-untyped-def]
    row, key, low, top_k, list_ptr, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr, TILE: tl.constexpr
):
    """:func:`_edge` of the ``top_k`` most likely tokens; ``key``: :func:`largest_keys` of the row."""
    if top_k <= TILE:  # ``top_k`` lanes have a token of at least the value that is looked for
        high = tl.max(key, axis=0).to(tl.int64) + 1
        low = _reached(key, tl.full((TILE,), 1, tl.int64), low, tl.maximum(high, low + 1), top_k)
    return _edge(row, value_of(tl.max(key, axis=0)), low, top_k, list_ptr, ADJUSTED, ALLOWED, False, TILE)


@triton.jit
def edge_of(  # type: ignore[no-untyped-def]
    row, min_p, top_k, top_p, list_ptr, FILTERED: tl.constexpr, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The largest value of a row (:func:`scaled_tile`), the least key that stays, and how many tokens of it do.

    Args:
        row: as for :func:`scaled_tile`.
        min_p: 0 keeps all.
        top_k: int64, 0 keeps all.
        top_p: 1 keeps all.
        list_ptr: int32 ``[TILE]``, overwritten.
        FILTERED: whether any row has a filter.
        ADJUSTED: as for :func:`scaled_tile`.
        ALLOWED: likewise.
        TILE: tokens of a tile.
    """
    vocab, key = row[1], largest_keys(row, ADJUSTED, ALLOWED, TILE)
    best = value_of(tl.max(key, axis=0))
    low, equal = tl.full((), _LOWEST, tl.int64), tl.full((), 1 << 40, tl.int64)
    if FILTERED:
        if min_p > 0.0:
            low = tl.maximum(low, key_of(best + tl.log(min_p.to(tl.float64)).to(tl.float32)).to(tl.int64))
        if (top_k > 0) & (top_k < vocab):
            low, _, _ = top_k_edge(row, key, low, top_k, list_ptr, ADJUSTED, ALLOWED, TILE)
        if top_p < 1.0:
            low, need, above = _edge(row, best, low, top_p, list_ptr, ADJUSTED, ALLOWED, True, TILE)
            weight = tl.maximum(_weights(value_of(low.to(tl.int32)), best, True), 1)
            equal = (need - above + weight - 1) // weight
    return best, low, equal
