"""The host's work on the outcome of a forward: cut commits at the end of outputs, keep tokens, add up statistics.

Integers, copies and sums of exact multiples, so results equal those of arrays bit for bit: :func:`cut` and :func:`keep`
those of ``testing/engine/accounting_oracle.py``, which adds up :data:`wedlm_core.statistics.ACCUMULATORS`. A step of a
small model is as short as a few operations on arrays take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import COUNTS, NATS, DraftSource

Array = np.ndarray[Any, np.dtype[Any]]

_FORWARDS, _ROWS = COUNTS.index("forwards"), COUNTS.index("rows")
_WIDEST, _EARLY, _TESTED = COUNTS.index("widest_window"), COUNTS.index("early"), COUNTS.index("tested")
_MASK = int(DraftSource.MASK)
_DRAFTS = np.array([COUNTS.index(f"{source.name.lower()}_drafts") for source in DraftSource])
_ACCEPTED = np.array([COUNTS.index(f"{source.name.lower()}_accepted") for source in DraftSource])
_ENTROPY, _LARGEST_ENTROPY = NATS.index("entropy"), NATS.index("largest_entropy")
_LOGPROB, _LARGEST_SURPRISE = NATS.index("logprob"), NATS.index("largest_surprise")


class Observed(NamedTuple):
    """Columns of :class:`wedlm_core.statistics.StepOutcome`: ``[D]``, and from ``token`` on ``[D, C]``."""

    drafts: Array
    agreed: Array
    offered: Array
    token: Array
    entropy: Array
    logprob: Array
    early: Array


@kernel
def cut(slots, count, token, generated, limit, stops, stop_counts, emit, stopped, full):  # type: ignore[no-untyped-def]
    """Cut the commits of D sequences at ``max_tokens`` and after the first stop token, which is kept.

    Args:
        slots: int64 ``[D]``.
        count: int64 ``[D]``, committed tokens.
        token: int64 ``[D, C]``, the tokens.
        generated: int64 ``[slots]``, output tokens so far.
        limit: int64 ``[slots]``, output tokens at most.
        stops: int64 ``[slots, K]``, stop tokens.
        stop_counts: int64 ``[slots]``, how many of them there are.
        emit: int64 ``[D]``, written: committed tokens that are output.
        stopped: bool ``[D]``, written: a stop token is the last of these.
        full: bool ``[D]``, written: there is room for no more than these.
    """
    for d in range(len(slots)):
        slot = slots[d]
        left = limit[slot] - generated[slot]
        most, found = min(count[d], left), False
        for j in range(most):
            for k in range(stop_counts[slot]):
                found = found or token[d, j] == stops[slot, k]
            if found:
                most = j + 1
                break
        emit[d], stopped[d], full[d] = most, found, most >= left


@kernel
def _in_steps(nats):  # type: ignore[no-untyped-def]
    """The nearest multiple of 2**-24: sums of these are exact."""
    return np.rint(np.float64(nats) * np.float64(2**24)) * 2.0**-24


@kernel
def _larger(value, before):  # type: ignore[no-untyped-def]
    """The larger one; NaN stays."""
    return value if value > before or value != value else before


@kernel
def keep(  # type: ignore[no-untyped-def]
    slots, rows, emit, observed, masks, generated, source, output, logprob, counts, nats, emitted
):
    """Keep the output of D sequences in a forward, and add it to the totals of their slots.

    Args:
        slots: int64 ``[D]``, different ones.
        rows: int64 ``[D]``, decode rows of the forward.
        emit: int64 ``[D]``, committed tokens that are output.
        observed: :class:`Observed`.
        masks: int64 ``[slots]``, masks of the windows, negative where none was planned yet.
        generated: int64 ``[slots]``, output tokens so far, written.
        source: int8 ``[slots, P]``, where each draft came from.
        output: int32 ``[slots, N]``, output tokens, written.
        logprob: float32 ``[slots, N]``, their log-probabilities, written.
        counts: int64 ``[COUNTS, slots]``, added to.
        nats: float64 ``[NATS, slots]``, added to.
        emitted: int64 ``[slots, places]``, decode forwards by tokens that they output, added to.

    Returns:
        Of these sequences: masks, and output tokens.
    """
    drafts, agreed, offers, tokens, entropies, logprobs, earlies = observed
    all_masks, all_tokens = 0, 0
    for d in range(len(slots)):
        slot, take = slots[d], emit[d]
        place = generated[slot]
        early = 0
        entropy, largest_entropy = 0.0, nats[_LARGEST_ENTROPY, slot]
        log, largest_surprise = 0.0, nats[_LARGEST_SURPRISE, slot]
        for j in range(take):
            output[slot, place + j] = tokens[d, j]
            logprob[slot, place + j] = logprobs[d, j]
            early += earlies[d, j]
            one, other = _in_steps(entropies[d, j]), _in_steps(logprobs[d, j])
            entropy += one
            largest_entropy = _larger(one, largest_entropy)
            log += other
            largest_surprise = _larger(-other, largest_surprise)
        nats[_ENTROPY, slot] += entropy
        nats[_LARGEST_ENTROPY, slot] = largest_entropy
        nats[_LOGPROB, slot] += log
        nats[_LARGEST_SURPRISE, slot] = largest_surprise
        counts[_EARLY, slot] += early
        counts[_ROWS, slot] += rows[d]
        counts[_FORWARDS, slot] += 1
        counts[_WIDEST, slot] = max(counts[_WIDEST, slot], rows[d])
        emitted[slot, take] += 1
        offered, accepted = (offers[d], min(agreed[d], take)) if drafts[d] > 0 else (0, 0)
        tested = min(drafts[d], take)
        for j in range(min(max(offered, tested, accepted), source.shape[1])):
            kind = source[slot, j]
            counts[_DRAFTS[kind], slot] += j < offered
            counts[_ACCEPTED[kind], slot] += j < accepted
            counts[_TESTED, slot] += kind == _MASK and j < tested
        generated[slot] += take
        all_masks += max(masks[slot], 0)
        all_tokens += take
    return all_masks, all_tokens
