"""Chooses a token for each row of logits, with its entropy and log-probability, in one pass that makes the noise."""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
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
    where_less,
)

__all__ = ["choose_again", "choose_row", "choose_rows", "gumbel", "rank_rows"]

_WEYL = np.uint64(0x9E3779B97F4A7C15)


@kernel(inline="always")
def _mix_64(x):  # type: ignore[no-untyped-def]
    """SplitMix64 finaliser; see :mod:`wedlm_core.decoding.noise`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel(inline="always")
def _key(seed, position):  # type: ignore[no-untyped-def]
    """What the noise of a row is made from; see :mod:`wedlm_core.decoding.noise`."""
    key = _mix_64(np.uint64(seed) * np.uint64(2) + np.uint64(1)) + np.uint64(position) * _WEYL
    return _mix_64(key)


@kernel
def _gumbel_of(key, begin, size, out):  # type: ignore[no-untyped-def]
    """The noise of ``size`` tokens from ``begin`` on."""
    for i in range(size):
        bits = _mix_64(key + np.uint64(begin + i + 1) * _WEYL) >> np.uint64(11)
        out[i] = (np.float32(np.int64(bits)) + F32(0.5)) * F32(2.0**-53)
    for i in range(0, size, LANES):
        u = min(load(out, i, size - i, F32(0.5)), F32(1.0 - 2.0**-24))
        # -log1p(-u): below 2^-10 by its series, since 1 - u would round u away.
        small = fma(fma(u, F32(1.0 / 3.0), F32(0.5)), u * u, u)
        waiting = where_less(u, F32(2.0**-10), small, -log(F32(1.0) - u))
        store(out, i, size - i, -log(waiting))


@kernel
def gumbel(seed, position, out):  # type: ignore[no-untyped-def]
    """One row of :func:`wedlm_core.decoding.noise.gumbel_noise`, up to the last bits of its logarithms."""
    _gumbel_of(_key(seed, position), 0, len(out), out)


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
        _gumbel_of(key, begin, count, noise)
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


@kernel
def choose_row(  # type: ignore[no-untyped-def]
    logits, flat, r, heat, seed, position, suppressed, bits, line, mask_token, vocab_limit, scaled, noise
):
    """One pass over row ``r`` of the logits: see :func:`choose_rows`.

    Args:
        logits: ``[R, V]``; suppressed ids are overwritten with -inf.
        flat: the same memory, ``[R * V]``.
        r: the row.
        heat: its temperature.
        seed: of its sequence.
        position: of the token.
        suppressed: whether it never chooses the mask token or ids from ``vocab_limit`` on.
        bits: uint32 ``[U, W]``.
        line: of ``bits``; -1 for none, -2 - t where token t alone is allowed.
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        scaled: float32 ``[V]``, overwritten.
        noise: float32 ``[32]``, overwritten.

    Returns:
        The token, its entropy and its log-probability.
    """
    size = logits.shape[1]
    at = r * size
    if suppressed:
        logits[r, mask_token] = F32(-np.inf)
        for i in range(vocab_limit, size):
            logits[r, i] = F32(-np.inf)
    token = _first_max(logits, at, size)
    top = logits[r, token]
    log_mass, entropy = _entropy(logits, at, size, top)
    alone, restricted = -2 - line, line >= 0
    if restricted and heat == 0 and not _allows(bits, line, token):
        token = _first_max_allowed(flat, at, size, bits, line)
    if heat > 0:
        if suppressed:  # the entropy of the distribution that is sampled from
            for i in range(0, size, LANES):
                store(scaled, i, size - i, load(logits, at + i, size - i, F32(0.0)) / heat)
            _, entropy = _entropy(scaled, 0, size, top / heat)
        key = _key(seed, position)
        if restricted:
            token = _sample_allowed(flat, at, size, bits, line, heat, key, noise)
        elif alone < 0:
            _gumbel_of(key, 0, size, scaled)
            for i in range(0, size, LANES):
                logit = load(logits, at + i, size - i, F32(0.0))
                store(scaled, i, size - i, load(scaled, i, size - i, F32(0.0)) + logit / heat)
            token = _first_max(scaled, 0, size)
    if alone >= 0:
        token = 0 if logits[r, alone] == F32(-np.inf) else alone
    return token, entropy, logits[r, token] - top - log_mass


@kernel
def choose_rows(  # type: ignore[no-untyped-def]
    logits,
    temperature,
    seeds,
    positions,
    suppress,
    bits,
    lines,
    mask_token,
    vocab_limit,
    tokens,
    entropies,
    logprobs,
    first,
    last,
):
    """One pass over each row of logits: token, entropy, log-probability (see ``decoding.sampling.choose``).

    Args:
        logits: ``[R, V]``; suppressed ids are overwritten with -inf.
        temperature: ``[R]``; 0 is greedy.
        seeds: int64 ``[R]``.
        positions: int64 ``[R]``.
        suppress: bool ``[R]``, rows that never choose the mask token or ids from ``vocab_limit`` on.
        bits: uint32 ``[U, W]`` (:mod:`wedlm_core.decoding.allowed_tokens`).
        lines: int64 ``[R]``, the line of ``bits`` that restricts a row, or its like (``AllowedRows.line_R``); empty
            where none is restricted.
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        tokens: int64 ``[R]``, written.
        entropies: ``[R]``, written.
        logprobs: ``[R]``, written.
        first: row to begin with.
        last: row to end before.
    """
    scaled, noise = np.empty(logits.shape[1], dtype=np.float32), np.empty(32, dtype=np.float32)
    flat = logits.reshape(logits.size)
    for r in range(first, last):
        line = lines[r] if len(lines) > 0 else -1
        tokens[r], entropies[r], logprobs[r] = choose_row(
            logits, flat, r, temperature[r], seeds[r], positions[r], suppress[r], bits, line, mask_token, vocab_limit,
            scaled, noise,
        )  # fmt: skip


@kernel
def choose_again(logits, rows, picks, bits, lines, tokens, logprobs):  # type: ignore[no-untyped-def]
    """Restrict greedy choices of :func:`choose_rows` that a grammar refuses; entropies stay as they are.

    A free greedy choice is the largest logit, so its log-probability is the rest of the sum: nothing is summed again,
    and the result has the bits that :func:`choose_rows` gives with the same restriction.

    Args:
        logits: ``[L, V]``.
        rows: int64 ``[N]``, rows of logits to choose by again.
        picks: int64 ``[N]``, places of their choices.
        bits: uint32 ``[U, W]``.
        lines: int64 ``[N]``, the line of ``bits`` that says what a row may choose; -2 - t for token t alone, whose
            logit is a number.
        tokens: int64 ``[R]``, written.
        logprobs: ``[R]``, written.
    """
    size = logits.shape[1]
    flat = logits.reshape(logits.size)
    for n in range(len(rows)):
        r, p = rows[n], picks[n]
        token = _first_max_allowed(flat, r * size, size, bits, lines[n]) if lines[n] >= 0 else -2 - lines[n]
        logprobs[p] = (logits[r, token] - logits[r, tokens[p]]) + logprobs[p]
        tokens[p] = token


@kernel
def rank_rows(logits, rows, temperature, seeds, positions, tokens):  # type: ignore[no-untyped-def]
    """The first choices of rows: what each would choose, what it would if that were not allowed, and so on.

    Args:
        logits: ``[L, V]``, after :func:`choose_rows`.
        rows: int64 ``[N]``, rows to rank.
        temperature: ``[N]``; 0 is greedy.
        seeds: int64 ``[N]``.
        positions: int64 ``[N]``.
        tokens: int64 ``[N, K]``, written; -1 where no token has a chance.
    """
    size, most = logits.shape[1], tokens.shape[1]
    flat = logits.reshape(logits.size)
    block, best = np.empty(32, dtype=np.float32), np.empty(most, dtype=np.float32)
    for n in range(len(rows)):
        r = rows[n]
        heat, key = temperature[n], _key(seeds[n], positions[n])
        best[:], tokens[n] = F32(-np.inf), -1
        for begin in range(0, size, 32):
            count = min(32, size - begin)
            if heat > 0:
                _gumbel_of(key, begin, count, block)
            lanes = spread(F32(-np.inf))
            for i in range(0, count, LANES):
                value = load(flat, r * size + begin + i, count - i, F32(-np.inf))
                if heat > 0:
                    value = load(block, i, count - i, F32(0.0)) + value / heat
                store(block, i, count - i, value)
                lanes = max(lanes, value)
            if largest(lanes) <= best[most - 1]:
                continue
            for i in range(count):
                if block[i] > best[most - 1]:
                    place = most - 1
                    while place > 0 and block[i] > best[place - 1]:  # the first of equal ones stays ahead
                        best[place], tokens[n, place] = best[place - 1], tokens[n, place - 1]
                        place -= 1
                    best[place], tokens[n, place] = block[i], begin + i
