"""Token, entropy and log-probability of each row of logits in one read of the logits, on a GPU (Triton).

A program takes some groups of tiles of one row. A group's sum depends on the group alone, and a second small kernel
adds the groups of a row in one order: so a row's bits depend neither on how its groups are shared out between programs
nor on the other rows. The noise is :mod:`wedlm_core.kernels.cpu.noise`'s, with the logarithms of the device's
mathematical library, which are those that torch calls there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from wedlm_core.kernels.gpu.adjusting_gpu import edit_row, uses_any
from wedlm_core.kernels.gpu.filtering_gpu import edge_of, key_of, scaled_tile
from wedlm_core.kernels.gpu.likely_gpu import report_row

_FLOOR = tl.constexpr(-1.0e38)  # below any logit but -inf: differences from it stay numbers
_NOTHING = tl.constexpr(-125.0)  # exp2 of less counts nothing, and would leave the normal float32 numbers
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64 finaliser on uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _row_key(seed, position):  # type: ignore[no-untyped-def]
    """Key of a row's noise, uint64."""
    inner = _mix(seed.to(tl.uint64) * 2 + 1)
    return _mix(inner + position.to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _hash(key, token):  # type: ignore[no-untyped-def]
    """Hashed counters of a row's tokens, uint64."""
    return _mix(key + (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _gumbel(hashed, LIBM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gumbel noise of hashed counters; without ``LIBM`` (the interpreter) up to the last bits of its logarithms."""
    bits = (hashed >> 11).to(tl.int64)
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 1.1102230246251565e-16, 0.999999940395355224609375)
    if LIBM:
        waiting = -libdevice.log1p(-u)
        noise = -libdevice.log(waiting)
    else:
        rest = 1.0 - u
        # The factor u / (1 - rest) makes up for the rounding of 1 - u.
        share = u / tl.maximum(1.0 - rest, 1.0e-9)
        waiting = tl.where(rest == 1.0, u, -tl.log(rest) * share)
        noise = -tl.log(waiting)
    return noise


@triton.jit
def _sample_tile(x, token, key, heat, best, chosen, LIBM: tl.constexpr):  # type: ignore[no-untyped-def]
    """``argmax(x / heat + noise)`` over this tile and the best before it.

    Logarithms are slow and hardly any token can win: noise is at most -log(u) for its uniform number u, so only a
    token with u <= exp(x / heat - best) may. Where no token of the tile passes this test, which is taken with the
    first 23 bits of u and some slack for rounding, the tile ends here.
    """
    hashed = _hash(key, token)
    one_plus_u = ((hashed >> 41).to(tl.uint32) | 0x3F800000).to(tl.float32, bitcast=True)
    offset = (0.02 + 1.0e-6 * tl.abs(best) - best) * _LOG2_E
    reach = tl.exp2(tl.minimum(x * (_LOG2_E / heat) + offset, 1.0))
    if tl.max(reach - one_plus_u, axis=0) > -1.0000002384185791015625:
        score = tl.div_rn(x, tl.zeros_like(x) + heat) + _gumbel(hashed, LIBM)
        top = tl.max(score, axis=0)
        if top > best:
            best = top
            chosen = tl.min(tl.where(score == top, token, _NO_TOKEN), axis=0)
    return best, chosen


@triton.jit
def _load_tile(row_ptr, token, vocab):  # type: ignore[no-untyped-def]
    return tl.load(row_ptr + token, mask=token < vocab, other=-float("inf"))


@triton.jit
def _no_sums(TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    zero = tl.zeros((TILE,), tl.float32)
    return tl.full((), _FLOOR, tl.float32), zero, zero, zero


@triton.jit
def _sharpness(heat, hidden):  # type: ignore[no-untyped-def]
    """The factor of logits for the entropy: see :class:`wedlm_core.decoding.sampling.Choice`."""
    warm = heat > 0
    return tl.where(warm & hidden, 1.0 / tl.where(warm, heat, 1.0), 1.0)


# Not specialised: a kernel is compiled once per vocabulary, not again for one row, for 16 tiles, or for rows of a chunk
# that begin at another alignment.
@triton.jit(
    do_not_specialize=["plane", "words", "mask_token", "vocab_limit", "tiles", "groups", "groups_each"],
    do_not_specialize_on_alignment=["position_ptr"],
)
def reduce_tiles(  # type: ignore[no-untyped-def]
    logits_ptr,
    row_stride,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    suppress_ptr,
    bits_ptr,
    line_ptr,
    partial_ptr,
    best_ptr,
    place_ptr,
    plane,
    vocab,
    words,
    mask_token,
    vocab_limit,
    tiles,
    groups,
    groups_each,
    ALLOWED: tl.constexpr,
    SAMPLED: tl.constexpr,
    TWO_HEATS: tl.constexpr,
    LIBM: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Program (row, split): sums of ``groups_each`` groups of a row, and the best token among them.

    Args:
        logits_ptr: any floating-point type ``[R, V]``, tokens next to each other.
        row_stride: elements between rows.
        temperature_ptr: float32 ``[R]``; 0 is greedy.
        seed_ptr: int64 ``[R]``.
        position_ptr: int64 ``[R]``.
        suppress_ptr: bool ``[R]``.
        bits_ptr: int32 ``[U, words]`` (:mod:`wedlm_core.decoding.allowed_tokens`); read with ``ALLOWED`` only.
        line_ptr: int64 ``[R]``, the line of bits that restricts a row, -1 for none, -2 - t where token t alone is
            allowed; read with ``ALLOWED`` only.
        partial_ptr: float32 ``[4, R, groups]``, written: the maximum; then of z, the distance of a logit from the
            maximum (in powers of two, at the entropy's temperature), the sums of 2^z and of 2^z z; the sum of 2^z at
            temperature 1 (only with ``TWO_HEATS``).
        best_ptr: float32 ``[R, splits]``, written: the best score of a split.
        place_ptr: int32 ``[R, splits]``, written: its token.
        plane: R * groups.
        vocab: V.
        words: ceil(V / 32).
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        tiles: ceil(V / TILE).
        groups: ceil(tiles / GROUP).
        groups_each: groups of one program.
        ALLOWED: whether any row may be restricted.
        SAMPLED: whether any row may have a temperature.
        TWO_HEATS: whether a row may want its entropy at its temperature.
        LIBM: take logarithms from the device's library.
        TILE: tokens of a tile.
        GROUP: tiles of a group.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    heat = tl.load(temperature_ptr + row)
    hidden = tl.load(suppress_ptr + row) != 0
    sharp = _sharpness(heat, hidden)
    key = _row_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
    best = tl.full((), _FLOOR, tl.float32)
    chosen = tl.full((), 0, tl.int32)
    lane = tl.arange(0, TILE)
    first = split * groups_each * GROUP
    last = tl.minimum(first + groups_each * GROUP, tiles)
    logits_ptr += row * row_stride
    partial_ptr += row * groups
    restricted = False
    if ALLOWED:
        line = tl.load(line_ptr + row)
        restricted = line != -1
        bits_ptr += tl.maximum(line, 0) * words
    top, mass, weighted, raw = _no_sums(TILE)
    ahead = _load_tile(logits_ptr, first * TILE + lane, vocab)
    for tile in range(first, last):
        x = ahead.to(tl.float32)
        token = tile * TILE + lane
        # The next tile is under way while this one is computed with; after the last one nothing is read.
        ahead = _load_tile(logits_ptr, token + TILE, tl.where(tile + 1 < last, vocab, 0))
        if hidden:
            x = tl.where((token < vocab_limit) & (token != mask_token), x, -float("inf"))
        peak = tl.max(x, axis=0)
        if peak > top:  # sums so far are brought to the new maximum
            lower = tl.maximum((top - peak) * _LOG2_E, _NOTHING)
            below = tl.maximum(lower * sharp, _NOTHING)
            weighted = (weighted + below * mass) * tl.exp2(below)
            mass = mass * tl.exp2(below)
            if TWO_HEATS:
                raw = raw * tl.exp2(lower)
            top = peak
        z = tl.maximum((x - top) * _LOG2_E, _NOTHING)
        if TWO_HEATS:
            raw += tl.exp2(z)
            z = tl.maximum(z * sharp, _NOTHING)
        e = tl.exp2(z)
        mass += e
        weighted += e * z
        if ((tile + 1) % GROUP == 0) | (tile + 1 == tiles):
            partial = partial_ptr + tile // GROUP
            tl.store(partial, top)
            tl.store(partial + plane, tl.sum(mass, axis=0))
            tl.store(partial + 2 * plane, tl.sum(weighted, axis=0))
            if TWO_HEATS:
                tl.store(partial + 3 * plane, tl.sum(raw, axis=0))
            top, mass, weighted, raw = _no_sums(TILE)
        if ALLOWED:  # noqa: SIM102 - else bits_ptr may be of another type, and the code below must not be compiled
            if restricted:  # the sums above are of the whole distribution, the choice is not
                word = tl.load(bits_ptr + token // 32, mask=(token < vocab) & (line >= 0), other=0)
                x = tl.where((((word >> (token % 32)) & 1) != 0) | (token == -2 - line), x, -float("inf"))
                peak = tl.max(x, axis=0)
        sampling = False
        if SAMPLED:
            sampling = heat > 0
        if sampling:
            best, chosen = _sample_tile(x, token, key, heat, best, chosen, LIBM)
        elif peak > best:
            best = peak
            chosen = tl.min(tl.where(x == peak, token, _NO_TOKEN), axis=0)
    splits = tl.num_programs(1)
    tl.store(best_ptr + row * splits + split, best)
    tl.store(place_ptr + row * splits + split, chosen)


@triton.jit
def _refused(row, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first token that a restricted row may not choose; 0 where it may choose all."""
    _, vocab, _, _, _, _, _, bits_ptr, line = row
    found = tl.full((), _NO_TOKEN, tl.int32)
    for tile in range(tl.cdiv(vocab, TILE)):
        token = tile * TILE + tl.arange(0, TILE)
        word = tl.load(bits_ptr + token // 32, mask=(token < vocab) & (line >= 0), other=0)
        may = (((word >> (token % 32)) & 1) != 0) | (token == -2 - line)
        found = tl.minimum(found, tl.min(tl.where(may | (token >= vocab), _NO_TOKEN, token), axis=0))
    return tl.where(found == _NO_TOKEN, 0, found)


@triton.jit
def _choose_row(  # type: ignore[no-untyped-def]
    row, key, filters, list_ptr, FILTERED: tl.constexpr, ADJUSTED: tl.constexpr, ALLOWED: tl.constexpr,
    LIBM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The token of a row that is filtered or adjusted; and the entropy of its distribution.

    Args:
        row: as for :func:`.filtering_gpu.scaled_tile`, of temperature 1 where it is greedy.
        key: of its noise.
        filters: min-p, top-k and top-p, and whether it has a temperature.
        list_ptr: int32 ``[TILE]``, overwritten.
        FILTERED: as for :func:`combine_tiles`.
        ADJUSTED: likewise.
        ALLOWED: likewise.
        LIBM: likewise.
        TILE: likewise.
    """
    lane, vocab = tl.arange(0, TILE), row[1]
    min_p, top_k, top_p, warm = filters
    top, low, equal = edge_of(row, min_p, top_k, top_p, list_ptr, FILTERED, ADJUSTED, ALLOWED, TILE)
    best, chosen = tl.full((), _FLOOR, tl.float32), tl.full((), 0, tl.int32)
    mass, weighted = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for tile in range(tl.cdiv(vocab, TILE)):
        token = tile * TILE + lane
        x = scaled_tile(row, token, ADJUSTED, ALLOWED)
        order = key_of(x)
        kept, same = order > low, order == low
        found = tl.sum(same.to(tl.int64), axis=0)
        if found > 0:  # of equal tokens the first ones stay
            kept = kept | (same & (tl.cumsum(same.to(tl.int64), axis=0) <= equal))
            equal -= found
        x = tl.where(kept, x, -float("inf"))
        peak = tl.max(x, axis=0)
        if peak > _FLOOR:
            z = tl.maximum((x - top) * _LOG2_E, _NOTHING)
            e = tl.where(kept, tl.exp2(z), 0.0)
            mass += e
            weighted += e * z
            if warm:
                best, chosen = _sample_tile(x, token, key, 1.0, best, chosen, LIBM)
            elif peak > best:
                best = peak
                chosen = tl.min(tl.where(x == peak, token, _NO_TOKEN), axis=0)
    total = tl.sum(mass, axis=0)
    entropy = _LN_2 * (tl.log2(total) - tl.sum(weighted, axis=0) / total)
    if ADJUSTED and ALLOWED:  # noqa: SIM102 - without them this must not be compiled
        if (row[8] != -1) & (best == _FLOOR):
            chosen = _refused(row, TILE)
    return chosen, entropy


# Of 8 warps whether or not rows are filtered: sums depend on how they are shared out.
@triton.jit(
    do_not_specialize=["plane", "groups", "splits", "rows", "words", "mask_token", "vocab_limit", "most"],
    do_not_specialize_on_alignment=["position_ptr", "slot_ptr"],
)
def combine_tiles(  # type: ignore[no-untyped-def]
    logits_ptr,
    row_stride,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    suppress_ptr,
    bits_ptr,
    line_ptr,
    partial_ptr,
    best_ptr,
    place_ptr,
    token_ptr,
    entropy_ptr,
    logprob_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    slot_ptr,
    record_ptr,
    scratch_ptr,
    report_ptr,
    top_token_ptr,
    top_logprob_ptr,
    plane,
    groups,
    splits,
    rows,
    vocab,
    words,
    mask_token,
    vocab_limit,
    most,
    FILTERED: tl.constexpr,
    ADJUSTED: tl.constexpr,
    ALLOWED: tl.constexpr,
    REPORTED: tl.constexpr,
    TWO_HEATS: tl.constexpr,
    LIBM: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Some rows' tokens (int64), entropies and log-probabilities (float32, nats), each ``[R]``.

    Of a row without filters and adjustments it joins the results of :func:`reduce_tiles`; others read their logits
    again.

    Arguments as of :func:`reduce_tiles`, and:
        min_p_ptr, top_k_ptr, top_p_ptr: float32, int64 and float32 ``[R]``; read with ``FILTERED`` only.
        slot_ptr: int64 ``[R]``, engine slots; read with ``ADJUSTED`` only.
        record_ptr: the record of adjustments (:func:`.adjusting_gpu.edit_row`); likewise.
        scratch_ptr: int32 ``[programs, V + TILE]``, zeros but for the last TILE; without ``ADJUSTED`` any values, and
            without ``FILTERED`` and ``REPORTED`` too not read.
        report_ptr: int64 ``[R]``, not 0 for rows that report their most likely tokens; read with ``REPORTED`` only.
        top_token_ptr, top_logprob_ptr: int64 and float32 ``[R, most]``, written with ``REPORTED`` only: these tokens,
            zeros of rows that report none.
        rows: R.
        most: at most 32.
        FILTERED: whether any row may be filtered.
        ADJUSTED: whether any row may be adjusted.
        REPORTED: whether any row may report its most likely tokens.
        GROUPS: groups, rounded up to a power of two; there are no more splits.
    """
    scratch_ptr += tl.program_id(0).to(tl.int64) * (vocab + TILE)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        split = tl.arange(0, GROUPS)
        score = tl.load(best_ptr + row * splits + split, mask=split < splits, other=-float("inf"))
        place = tl.load(place_ptr + row * splits + split, mask=split < splits, other=_NO_TOKEN)
        token = tl.min(tl.where(score == tl.max(score, axis=0), place, _NO_TOKEN), axis=0)
        group = tl.arange(0, GROUPS)
        inside = group < groups
        partial = partial_ptr + row * groups + group
        peak = tl.load(partial, mask=inside, other=_FLOOR)
        top = tl.max(peak, axis=0)
        heat, hidden = tl.load(temperature_ptr + row), tl.load(suppress_ptr + row) != 0
        lower = tl.maximum((peak - top) * _LOG2_E, _NOTHING)
        below = tl.maximum(lower * _sharpness(heat, hidden), _NOTHING)
        scale = tl.exp2(below)
        mass = tl.load(partial + plane, mask=inside, other=0.0)
        weighted = tl.load(partial + 2 * plane, mask=inside, other=0.0) + below * mass
        total = tl.sum(mass * scale, axis=0)
        entropy = _LN_2 * (tl.log2(total) - tl.sum(weighted * scale, axis=0) / total)
        if TWO_HEATS:
            raw = tl.load(partial + 3 * plane, mask=inside, other=0.0)
            total = tl.sum(raw * tl.exp2(lower), axis=0)
        if FILTERED or ADJUSTED:
            warm, line, uses = heat > 0.0, tl.full((), -1, tl.int64), False
            filters = 0.0, tl.full((), 0, tl.int64), 1.0, warm
            row_logits_ptr = logits_ptr + row * row_stride
            if FILTERED:
                min_p, top_k, top_p = tl.load(min_p_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
                min_p, top_p = tl.where(warm, min_p, 0.0), tl.where(warm, top_p, 1.0)
                filters = min_p, tl.where(warm, top_k, 0), top_p, warm
                uses = (filters[0] > 0.0) | (filters[1] > 0) | (filters[2] < 1.0)
            slot, position = tl.full((), 0, tl.int64), tl.load(position_ptr + row)
            if ADJUSTED:
                slot = tl.load(slot_ptr + row)
                adjusts = uses_any(record_ptr, slot)
                uses = uses | adjusts
            if ALLOWED:
                line = tl.load(line_ptr + row)
            if uses:
                if ADJUSTED:  # noqa: SIM102 - without it this must not be compiled
                    if adjusts:
                        edit_row(record_ptr, scratch_ptr, row_logits_ptr, slot, position, vocab, False, TILE // 4)
                row_bits_ptr = bits_ptr + tl.maximum(line, 0) * words
                own_heat = tl.where(warm, heat, 1.0)
                own = (
                    row_logits_ptr, vocab, own_heat, hidden, mask_token, vocab_limit, scratch_ptr, row_bits_ptr, line,
                )  # fmt: skip
                key = _row_key(tl.load(seed_ptr + row), position)
                list_ptr = scratch_ptr + vocab
                token, spread = _choose_row(own, key, filters, list_ptr, FILTERED, ADJUSTED, ALLOWED, LIBM, TILE)
                entropy = tl.where(hidden & warm, spread, entropy)
                if ADJUSTED:  # noqa: SIM102
                    if adjusts:
                        edit_row(record_ptr, scratch_ptr, row_logits_ptr, slot, position, vocab, True, TILE // 4)
        chosen, log_mass = tl.load(logits_ptr + row * row_stride + token).to(tl.float32), _LN_2 * tl.log2(total)
        tl.store(token_ptr + row, token.to(tl.int64))
        tl.store(entropy_ptr + row, entropy)
        tl.store(logprob_ptr + row, chosen - top - log_mass)
        if REPORTED:
            raw_row = (
                logits_ptr + row * row_stride, vocab, 1.0, hidden, mask_token, vocab_limit, scratch_ptr, bits_ptr,
                tl.full((), -1, tl.int64),
            )  # fmt: skip
            reports = tl.load(report_ptr + row) != 0
            into = scratch_ptr + vocab, top_token_ptr + row * most, top_logprob_ptr + row * most
            report_row(raw_row, reports, most, top, log_mass, into, TILE)
