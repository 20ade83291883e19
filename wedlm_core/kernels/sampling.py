"""Token, entropy and log-probability of each row of logits in one pass, noise included."""

from __future__ import annotations

import numpy as np
from numba import njit

from wedlm_core.kernels.scalar import F32, JIT, LANES, exp, fma, log, sum_lanes

__all__ = ["choose_rows", "gumbel"]


@njit(inline="always", **JIT)
def _mix_64(x):  # type: ignore[no-untyped-def]
    """SplitMix64 finaliser; see :mod:`wedlm_core.decoding.noise`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**JIT)
def gumbel(seed, position, out):  # type: ignore[no-untyped-def]
    """One row of :func:`wedlm_core.decoding.noise.gumbel_noise`, up to the last bits of its logarithms."""
    weyl = np.uint64(0x9E3779B97F4A7C15)
    key = _mix_64(np.uint64(seed) * np.uint64(2) + np.uint64(1)) + np.uint64(position) * weyl
    key = _mix_64(key)
    for i in range(len(out)):
        bits = _mix_64(key + np.uint64(i + 1) * weyl) >> np.uint64(11)
        u = (np.float32(np.int64(bits)) + F32(0.5)) * F32(2.0**-53)
        u = min(u, F32(1.0 - 2.0**-24))
        # -log1p(-u): below 2^-10 by its series, since 1 - u would round u away.
        small = fma(fma(u, F32(1.0 / 3.0), F32(0.5)), u * u, u)
        waiting = small if u < F32(2.0**-10) else -log(F32(1.0) - u)
        out[i] = -log(waiting)


@njit(**JIT)
def _first_max(x, lanes):  # type: ignore[no-untyped-def]
    """Place of the largest value, the first of equal ones."""
    whole = len(x) // LANES * LANES
    for j in range(LANES):
        lanes[j] = F32(-np.inf)
    for i in range(0, whole, LANES):
        for j in range(LANES):
            lanes[j] = max(lanes[j], x[i + j])
    for i in range(whole, len(x)):
        lanes[i - whole] = max(lanes[i - whole], x[i])
    top = lanes[0]
    for j in range(1, LANES):
        top = max(top, lanes[j])
    for i in range(len(x)):
        if x[i] == top:
            return i
    return 0


@njit(**JIT)
def _entropy(x, top, lanes, weighted):  # type: ignore[no-untyped-def]
    """``(log sum exp(x - top), entropy)`` of one row of logits; below -87 a logit counts nothing."""
    whole = len(x) // LANES * LANES
    for j in range(LANES):
        lanes[j] = F32(0.0)
        weighted[j] = F32(0.0)
    for i in range(0, whole, LANES):
        for j in range(LANES):
            z = max(x[i + j] - top, F32(-87.0))
            e = exp(z)
            lanes[j] += e
            weighted[j] = fma(e, z, weighted[j])
    for i in range(whole, len(x)):
        z = max(x[i] - top, F32(-87.0))
        e = exp(z)
        lanes[i - whole] += e
        weighted[i - whole] = fma(e, z, weighted[i - whole])
    mass = sum_lanes(lanes)
    log_mass = log(mass)
    return log_mass, log_mass - sum_lanes(weighted) / mass


@njit(**JIT)
def choose_rows(  # type: ignore[no-untyped-def]
    logits, temperature, seeds, positions, suppress, mask_token, vocab_limit, tokens, entropies, logprobs, first, last
):
    """One pass over each row of logits: token, entropy, log-probability (see ``decoding.sampling.choose``).

    Args:
        logits: ``[R, V]``; suppressed ids are overwritten with -inf.
        temperature: ``[R]``; 0 is greedy.
        seeds: int64 ``[R]``.
        positions: int64 ``[R]``.
        suppress: bool ``[R]``, rows that never choose the mask token or ids from ``vocab_limit`` on.
        mask_token: id of the mask.
        vocab_limit: first id of vocabulary padding.
        tokens: int64 ``[R]``, written.
        entropies: ``[R]``, written.
        logprobs: ``[R]``, written.
        first: row to begin with.
        last: row to end before.
    """
    lanes, weighted = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    scaled = np.empty(logits.shape[1], dtype=np.float32)
    for r in range(first, last):
        x = logits[r]
        if suppress[r]:
            x[mask_token] = F32(-np.inf)
            for i in range(vocab_limit, len(x)):
                x[i] = F32(-np.inf)
        token = _first_max(x, lanes)
        top = x[token]
        log_mass, entropy = _entropy(x, top, lanes, weighted)
        if temperature[r] > 0:
            if suppress[r]:  # the entropy of the distribution that is sampled from
                for i in range(len(x)):
                    scaled[i] = x[i] / temperature[r]
                _, entropy = _entropy(scaled, scaled[token], lanes, weighted)
            gumbel(seeds[r], positions[r], scaled)
            for i in range(len(x)):
                scaled[i] += x[i] / temperature[r]
            token = _first_max(scaled, lanes)
        tokens[r] = token
        entropies[r] = entropy
        logprobs[r] = x[token] - top - log_mass
