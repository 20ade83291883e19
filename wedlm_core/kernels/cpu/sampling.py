"""Chooses a token for each row of logits, with its entropy and log-probability, in one pass that makes the noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.adjusting import Edits, adjust_row, restore_row, uses_any
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.filtering import BLOCK, heated, keep, largest_places, restrict, sample_kept
from wedlm_core.kernels.cpu.noise import key_of, noise_from
from wedlm_core.kernels.cpu.scalar import F32, exp, log
from wedlm_core.kernels.cpu.vector import (
    LANES,
    first_equal,
    first_lanes,
    fma,
    largest,
    load,
    spread,
    store,
    total,
)


@kernel
def _first_max(x, at, size):  # type: ignore[no-untyped-def]
    """Place of the largest of ``size`` values at ``at``, the first of equal ones; counted from there."""
    lanes = spread(F32(-np.inf))
    for i in range(0, size, LANES):
        lanes = max(lanes, load(x, at + i, size - i, F32(-np.inf)))
    top = spread(largest(lanes))
    for i in range(0, size, LANES):
        lane = first_equal(load(x, at + i, size - i, F32(np.nan)), top)
        if lane < LANES:
            return i + lane
    return 0


@kernel
def _entropy(x, at, size, top):  # type: ignore[no-untyped-def]
    """``(log sum exp(z), entropy)`` of z = x - top; a logit with z below -87 has no weight."""
    lanes, weighted = spread(F32(0.0)), spread(F32(0.0))
    for i in range(0, size, LANES):
        z = max(load(x, at + i, size - i, F32(0.0)) - top, F32(-87.0))
        e = first_lanes(exp(z), size - i)
        lanes = lanes + e
        weighted = fma(e, z, weighted)
    mass = total(lanes)
    log_mass = log(mass)
    return log_mass, log_mass - total(weighted) / mass


@kernel(inline="always")
def _allows(bits, line, token):  # type: ignore[no-untyped-def]
    return (bits[line, token >> 5] >> np.uint32(token & 31)) & np.uint32(1) != np.uint32(0)


@kernel
def _first_max_allowed(logits, at, size, bits, line):  # type: ignore[no-untyped-def]
    """:func:`_first_max` of the tokens whose bits are 1; words of zeros, which most are, cost a look."""
    best, top = 0, F32(-np.inf)
    for word in range(bits.shape[1]):
        may, begin = bits[line, word], word * 32
        if may == np.uint32(0):
            continue
        lanes = spread(F32(-np.inf))  # of all tokens of the word: an upper bound
        for i in range(begin, min(begin + 32, size), LANES):
            lanes = max(lanes, load(logits, at + i, size - i, F32(-np.inf)))
        if largest(lanes) <= top:
            continue
        for i in range(begin, min(begin + 32, size)):
            if logits[at + i] > top and (may >> np.uint32(i - begin)) & np.uint32(1):
                best, top = i, logits[at + i]
    return best


@kernel
def _sample_allowed(logits, at, size, bits, line, heat, key, noise):  # type: ignore[no-untyped-def]
    """The token whose logit over ``heat`` plus noise is largest, of those whose bits are 1, and no noise for others."""
    best, top = 0, F32(-np.inf)
    for word in range(bits.shape[1]):
        may, begin = bits[line, word], word * 32
        if may == np.uint32(0):
            continue
        count = min(32, size - begin)
        noise_from(key, begin, count, noise)
        lanes = spread(F32(-np.inf))
        for i in range(0, count, LANES):
            logit = load(logits, at + begin + i, count - i, F32(-np.inf))
            value = load(noise, i, count - i, F32(0.0)) + logit / heat
            store(noise, i, count - i, value)
            lanes = max(lanes, value)
        if largest(lanes) <= top:
            continue
        for i in range(count):
            if noise[i] > top and (may >> np.uint32(i)) & np.uint32(1):
                best, top = begin + i, noise[i]
    return best


class Scratch(NamedTuple):
    """Memory that choosing a row overwrites, for a vocabulary of V tokens.

    Attributes:
        scaled, mass: float32 ``[V]``.
        tops: float32, one for each block of tokens.
        places: int32 ``[V]``.
        noise: float32 ``[32]``.
        edits: zeros where :class:`Edits` says so.
    """

    scaled: Any
    mass: Any
    tops: Any
    places: Any
    noise: Any
    edits: Any


@kernel
def scratch_of(size):  # type: ignore[no-untyped-def]
    """:class:`Scratch` for ``size`` tokens. Pages that are not touched cost nothing."""
    edits = Edits(
        np.zeros(size, dtype=np.int32),
        np.zeros(size, dtype=np.bool_),
        np.empty(2 * size, dtype=np.int32),
        np.empty(size, dtype=np.float32),
    )
    return Scratch(
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.float32),
        np.empty((size + BLOCK - 1) // BLOCK, dtype=np.float32),
        np.empty(size, dtype=np.int32),
        np.empty(32, dtype=np.float32),
        edits,
    )


@kernel
def _sample_filtered(logits, at, size, bits, line, heat, filters, key, scratch):  # type: ignore[no-untyped-def]
    """The token whose logit over ``heat`` plus noise is largest, of those that filters keep; and their entropy."""
    scaled, tops, places, mass = scratch.scaled, scratch.tops, scratch.places, scratch.mass
    best = heated(logits, at, size, heat, scaled, tops)
    if line >= 0:
        best = restrict(scaled, tops, bits, line)
    min_p, top_k, top_p = filters
    min_log = np.float32(np.log(np.float64(min_p)))
    count = keep(scaled, tops, best, min_log, top_k, top_p, mass, places)
    token = sample_kept(scaled, places, count, key, scratch.noise)
    for n in range(count):
        mass[n] = scaled[places[n]]
    return token, _entropy(mass, 0, count, best)[1]


@kernel
def _refused(bits, line, size):  # type: ignore[no-untyped-def]
    """The first token that a row may not choose; 0 where it may choose all."""
    for token in range(size):
        if token != -2 - line if line < -1 else not _allows(bits, line, token):
            return token
    return 0


@kernel
def choose_row(  # type: ignore[no-untyped-def]
    logits, flat, r, heat, filters, seed, slot, position, suppressed, adjustments, bits, line, mask_token, vocab_limit,
    scratch,
):  # fmt: skip
    """Choose by row ``r`` of the logits: see :func:`choose_rows`.

    Args:
        logits: ``[R, V]``; suppressed ids are overwritten with -inf.
        flat: the same memory, ``[R * V]``.
        r: the row.
        heat: its temperature.
        filters: its min-p, top-k and top-p.
        seed: of its sequence.
        slot: the engine slot of its sequence.
        position: of the token.
        suppressed: whether it never chooses the mask token or ids from ``vocab_limit`` on.
        adjustments: address of a record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS`, or 0.
        bits: uint32 ``[U, W]``.
        line: of ``bits``; -1 for none, -2 - t where token t alone is allowed.
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        scratch: :class:`Scratch`.

    Returns:
        The token, its entropy and its log-probability, the largest logit and the logarithm of the sum over it.
    """
    size = logits.shape[1]
    at, scaled = r * size, scratch.scaled
    if suppressed:
        logits[r, mask_token] = F32(-np.inf)
        for i in range(vocab_limit, size):
            logits[r, i] = F32(-np.inf)
    token = _first_max(logits, at, size)
    top = logits[r, token]
    log_mass, entropy = _entropy(logits, at, size, top)
    hottest = top
    alone, restricted, adjusts, edited = -2 - line, line >= 0, uses_any(adjustments, slot), 0
    if adjusts:
        edited = adjust_row(logits, r, slot, position, adjustments, scratch.edits)
        token = _first_max(logits, at, size)
        hottest = logits[r, token]
    if restricted and heat == 0 and not _allows(bits, line, token):
        token = _first_max_allowed(flat, at, size, bits, line)
    if heat > 0:
        key, filtered = key_of(seed, position), filters[0] > 0 or filters[1] > 0 or filters[2] < 1
        if filtered and alone < 0:
            token, spread_out = _sample_filtered(flat, at, size, bits, line, heat, filters, key, scratch)
            entropy = spread_out if suppressed else entropy
        elif suppressed:  # the entropy of the distribution that is sampled from
            for i in range(0, size, LANES):
                store(scaled, i, size - i, load(logits, at + i, size - i, F32(0.0)) / heat)
            _, entropy = _entropy(scaled, 0, size, hottest / heat)
        if restricted and not filtered:
            token = _sample_allowed(flat, at, size, bits, line, heat, key, scratch.noise)
        elif alone < 0 and not filtered:
            noise_from(key, 0, size, scaled)
            for i in range(0, size, LANES):
                logit = load(logits, at + i, size - i, F32(0.0))
                store(scaled, i, size - i, load(scaled, i, size - i, F32(0.0)) + logit / heat)
            token = _first_max(scaled, 0, size)
    if alone >= 0:
        token = 0 if logits[r, alone] == F32(-np.inf) else alone
    if adjusts:
        if line != -1 and (logits[r, token] == F32(-np.inf) or (alone >= 0 and token != alone)):
            token = _refused(bits, line, size)
        restore_row(logits, r, scratch.edits, edited)
    return token, entropy, logits[r, token] - top - log_mass, top, log_mass


@kernel
def likely(logits, at, size, top, log_mass, scratch, tokens, logprobs):  # type: ignore[no-untyped-def]
    """Write the most likely tokens of a row of logits, the first of equal ones first.

    Where no further token has any probability, the token is 0 and its logarithm -inf; zeros follow the vocabulary.

    Args:
        logits: flat.
        at: the place of the row's first number.
        size: numbers of the row.
        top: the largest of them.
        log_mass: as :func:`choose_row` returns it.
        scratch: :class:`Scratch`.
        tokens: int64 ``[K]``, written.
        logprobs: float32 ``[K]``, written.
    """
    scaled, tops, places, most = scratch.scaled, scratch.tops, scratch.places, len(tokens)
    heated(logits, at, size, F32(1.0), scaled, tops)
    count, listed = largest_places(scaled, tops, min(most, size), places), 0
    tokens[:], logprobs[:size], logprobs[size:] = 0, F32(-np.inf), F32(0.0)
    for n in range(count):
        logprob, place = scaled[places[n]] - top - log_mass, listed
        while place > 0 and logprob > logprobs[place - 1]:
            if place < most:
                tokens[place], logprobs[place] = tokens[place - 1], logprobs[place - 1]
            place -= 1
        if place < most:
            tokens[place], logprobs[place] = places[n], logprob
            listed = min(listed + 1, most)


@kernel
def choose_rows(  # type: ignore[no-untyped-def]
    logits,
    temperature,
    min_p,
    top_k,
    top_p,
    seeds,
    slots,
    positions,
    suppress,
    adjustments,
    bits,
    lines,
    mask_token,
    vocab_limit,
    tokens,
    entropies,
    logprobs,
    reports,
    top_tokens,
    top_logprobs,
):
    """Token, entropy and log-probability of each row of logits (see :mod:`wedlm_core.decoding.sampling`).

    Args:
        logits: ``[R, V]``; suppressed ids are overwritten with -inf.
        temperature: ``[R]``; 0 is greedy.
        min_p: ``[R]``; 0 keeps all tokens.
        top_k: int64 ``[R]``; 0 keeps all.
        top_p: ``[R]``; 1 keeps all.
        seeds: int64 ``[R]``.
        slots: int64 ``[R]``, engine slots; empty where no row is adjusted.
        positions: int64 ``[R]``.
        suppress: bool ``[R]``, rows that never choose the mask token or ids from ``vocab_limit`` on.
        adjustments: address of a record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS`, or 0.
        bits: uint32 ``[U, W]`` (:mod:`wedlm_core.decoding.allowed_tokens`).
        lines: int64 ``[R]``, the line of ``bits`` that restricts a row, or its like (``AllowedRows.line_R``); empty
            where none is restricted.
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        tokens: int64 ``[R]``, written.
        entropies: ``[R]``, written.
        logprobs: ``[R]``, written.
        reports: int64 ``[R]``, 0 for rows that do not report their most likely tokens; empty where no row does.
        top_tokens: int64 ``[R, K]``, written where rows report (:func:`likely`).
        top_logprobs: ``[R, K]``, likewise.
    """
    size = logits.shape[1]
    scratch, flat = scratch_of(size), logits.reshape(logits.size)
    for r in range(len(logits)):
        line = lines[r] if len(lines) > 0 else -1
        slot = slots[r] if len(slots) > 0 else 0
        filters = (min_p[r], top_k[r], top_p[r])
        tokens[r], entropies[r], logprobs[r], top, log_mass = choose_row(
            logits, flat, r, temperature[r], filters, seeds[r], slot, positions[r], suppress[r], adjustments, bits,
            line, mask_token, vocab_limit, scratch,
        )  # fmt: skip
        if len(reports) > 0 and reports[r] > 0:
            likely(flat, r * size, size, top, log_mass, scratch, top_tokens[r], top_logprobs[r])
