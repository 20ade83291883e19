"""The most likely tokens of one row of logits on a GPU (Triton), as :func:`wedlm_core.kernels.cpu.sampling.likely`."""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.gpu.filtering_gpu import key_of, largest_keys, scaled_tile, top_k_edge

_MOST = tl.constexpr(32)
_LOWEST = tl.constexpr(-2139095041)  # the key of -inf


@triton.jit
def _list_likely(row, most, list_ptr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the ids of a row's ``most`` most likely tokens to a list, ascending; their number."""
    low, need, above = top_k_edge(
        row, largest_keys(row, False, False, TILE), tl.full((), _LOWEST, tl.int64), most, list_ptr, False, False, TILE
    )
    tl.debug_barrier()  # the list held keys
    count, equal = tl.full((), 0, tl.int32), (need - above).to(tl.int32)
    for tile in range(tl.cdiv(row[1], TILE)):
        token = tile * TILE + tl.arange(0, TILE)
        key = key_of(scaled_tile(row, token, False, False))
        same = (key == low) & (key > _LOWEST)
        if tl.max(((key > low) | same).to(tl.int32), axis=0) > 0:
            same = same & (tl.cumsum(same.to(tl.int32), axis=0) <= equal)  # of equal tokens the first ones
            found = ((key > low) | same).to(tl.int32)
            tl.store(list_ptr + count + tl.cumsum(found, axis=0) - 1, token, mask=found != 0)
            count += tl.sum(found, axis=0)
            equal -= tl.sum(same.to(tl.int32), axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def report_row(row, reports, most, top, log_mass, into, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the most likely tokens of a row and their log-probabilities, the first of equal ones first.

    Where no further token has any probability, the token is 0 and its logarithm -inf; zeros follow the vocabulary.

    Args:
        row: as for :func:`.filtering_gpu.scaled_tile`, of temperature 1, neither edited nor restricted.
        reports: whether it reports any; else zeros are written.
        most: K, at most 32.
        top: its largest logit.
        log_mass: the logarithm of the sum over it.
        into: int32 ``[TILE]``, overwritten; int64 and float32 ``[K]``, written.
        TILE: tokens of a tile, 32 at least.
    """
    list_ptr, token_ptr, logprob_ptr = into
    lane, vocab, count = tl.arange(0, _MOST), row[1], tl.full((), 0, tl.int32)
    if reports:
        count = _list_likely(row, most, list_ptr, TILE)
        token = tl.load(list_ptr + lane, mask=lane < count, other=vocab)
        value = scaled_tile(row, token, False, False)
        key = key_of(value)
        # The list ascends, so that of equal tokens those before a token are those of lower lanes.
        before = (key[None, :] > key[:, None]) | ((key[None, :] == key[:, None]) & (lane[None, :] < lane[:, None]))
        place = tl.sum(before.to(tl.int32), axis=1)
        tl.store(token_ptr + place, token.to(tl.int64), mask=lane < count)
        tl.store(logprob_ptr + place, value - top - log_mass, mask=lane < count)
    nothing = tl.where(reports & (lane < vocab), -float("inf"), tl.zeros((_MOST,), tl.float32))
    tl.store(token_ptr + lane, tl.zeros((_MOST,), tl.int64), mask=(lane >= count) & (lane < most))
    tl.store(logprob_ptr + lane, nothing, mask=(lane >= count) & (lane < most))
