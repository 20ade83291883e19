"""Passes over the slot table: the needs of running sequences before a forward, and the accounts of its outcome.

Integers, copies and sums of exact multiples, so results do not depend on the order of forwards. A step of a small
model is as short as a few array operations take.
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


@kernel
def any_short(slots, context, cached, rows, capacity):  # type: ignore[no-untyped-def]
    """Whether a sequence whose context is cached has no room for its decode rows.

    Args:
        slots: int64 ``[R]``, running ones.
        context: int64 ``[slots]``, tokens that have to be cached before decode rows run.
        cached: int64 ``[slots]``, tokens that are.
        rows: int64 ``[slots]``, decode rows of the next forward.
        capacity: int64 ``[slots]``, KV entries that there is room for.
    """
    for slot in slots:  # noqa: SIM110  # Numba compiles no generators here
        if cached[slot] == context[slot] and cached[slot] + rows[slot] > capacity[slot]:
            return True
    return False


@kernel
def booked_rows(slots, adaptive, rows, widest, head):  # type: ignore[no-untyped-def]
    """Rows that running sequences keep from waiting ones: their windows' rows if adaptive, else their most rows.

    Args:
        slots: int64 ``[R]``, running ones.
        adaptive: bool ``[slots]``, drafting chooses their windows.
        rows: int64 ``[slots]``, decode rows of the next forward.
        widest: int64 ``[slots]``, masks of a window at most.
        head: bool ``[slots]``, a row more.
    """
    booked = 0
    for slot in slots:
        booked += rows[slot] if adaptive[slot] else 2 * widest[slot] + head[slot]
    return booked


@kernel
def _add(plan, at, slots, cached, r):  # type: ignore[no-untyped-def]
    """Write sequence r to a place of the plan; whether it is the same place."""
    slot = slots[r]
    plan[0, at], plan[1, at], plan[2, at], plan[3, at], plan[4, at] = slot, cached[slot], plan[5, r], plan[6, r], r
    return at == r


@kernel
def spend_rows(slots, context, cached, rows, held, group, budget, chunk, plan):  # type: ignore[no-untyped-def]
    """Spend the row budget: decoding sequences by age, then prefill chunks by age.

    Args:
        slots: int64 ``[R]``, running ones, by age.
        context: as for :func:`any_short`.
        cached: likewise.
        rows: likewise.
        held: bool ``[slots]``, sequences that wait.
        group: int64 ``[slots]``, number of the decoding implementation.
        budget: rows at most.
        chunk: prefill rows of a sequence at most; 0 where nothing but the budget limits them.
        plan: int64 ``[7, R]``, written. In the first places of lines 0 to 4 of the sequences that take part, those of
            a group together and those without decode rows last: slots, ``cached``, prefill rows, decode rows, and
            places among all of R. Lines 5 and 6 are scratch.

    Returns:
        How many take part, and whether they are the first ones as they run.
    """
    prefills, decodes = plan[5], plan[6]
    total, left = 0, budget
    for r in range(len(slots)):
        slot = slots[r]
        prefills[r], decodes[r] = 0, 0
        if cached[slot] == context[slot] and not held[slot]:
            total += rows[slot]
            if total <= budget:
                decodes[r] = rows[slot]
                left -= rows[slot]
    for r in range(len(slots)):
        slot = slots[r]
        pending = context[slot] - cached[slot]
        if pending == 0:
            continue
        part = min(pending, left)
        if chunk > 0:
            part = min(part, chunk)
        if part <= 0:
            break
        prefills[r] = part
        left -= part
        if part == pending and rows[slot] <= left:
            decodes[r] = rows[slot]
            left -= rows[slot]
    count, in_order, last = 0, True, -1
    while True:  # each group, from the least number on
        own, found = 0, False
        for r in range(len(slots)):
            number = group[slots[r]]
            if decodes[r] > 0 and number > last and (not found or number < own):
                own, found = number, True
        if not found:
            break
        for r in range(len(slots)):
            if decodes[r] > 0 and group[slots[r]] == own:
                in_order = _add(plan, count, slots, cached, r) and in_order
                count += 1
        last = own
    for r in range(len(slots)):
        if prefills[r] > 0 and decodes[r] == 0:
            in_order = _add(plan, count, slots, cached, r) and in_order
            count += 1
    return count, in_order
