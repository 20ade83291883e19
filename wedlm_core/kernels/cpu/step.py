"""Packing rows and advancing windows for ``verified``: what a step does beside the model and the choice of tokens.

Integers and copies only, so results equal those of tensor operations bit for bit: :func:`pack_rows` those of the
readable packer (``testing/engine/pack_oracle.py``), :func:`advance_windows` those of
:class:`wedlm_core.decoding.strategies.verified.VerifiedDecoding`. A verified window is drafts, then masks: physical
order is logical, row r of a sequence stands at position ``context + r``, and every decode row needs logits.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import OUTCOME_KINDS

__all__ = [
    "Choices",
    "Limits",
    "Outcome",
    "Picks",
    "Plan",
    "Rows",
    "Windows",
    "advance_windows",
    "blank_outcome",
    "pack_rows",
]

Array = np.ndarray[Any, np.dtype[Any]]


class Plan(NamedTuple):
    """S sequences, the D with decode rows first; int64 ``[S]`` as in ``engine.scheduler.ForwardPlan``."""

    slot: Array
    cached: Array
    prefill: Array
    decode: Array


class Windows(NamedTuple):
    """State by slot, as in ``decoding.window.Window``: ``token`` int64, ``filled, early`` bool ``[slots, L]``."""

    token: Array
    filled: Array
    early: Array
    length: Array
    lead: Array
    head: Array
    emitted: Array
    valid: Array


class Limits(NamedTuple):
    """Parameters by slot, as in ``decoding.window.WindowParams``; ``stop`` int64 ``[slots, K]``, -1 behind the last."""

    window: Array
    keep_valid: Array
    keep_stale: Array
    limit: Array
    stop: Array


class Rows(NamedTuple):
    """T rows of a forward, int64 ``[T]``: token, logical position, KV slot."""

    token: Array
    position: Array
    kv_entry: Array


class Picks(NamedTuple):
    """R rows that need logits, int64 ``[R]``: row of the forward, engine slot, position of the token chosen."""

    row: Array
    slot: Array
    position: Array


class Choices(NamedTuple):
    """What was chosen on picked rows: int64, float32 and float32 ``[R]``."""

    token: Array
    entropy: Array
    logprob: Array


Outcome = namedtuple("Outcome", tuple(OUTCOME_KINDS))  # type: ignore[misc]  # mypy wants to see the names here
"""The columns of :class:`wedlm_core.statistics.StepOutcome`, as a kernel takes them."""

_SHAPES = [(name.endswith("_DC"), kind) for name, kind in OUTCOME_KINDS.items()]


def blank_outcome(decoding: int, places: int) -> Any:
    """An :class:`Outcome` for :func:`advance_windows` to write.

    Args:
        decoding: D, decoding sequences; columns ``_D`` hold any value.
        places: C, at least any sequence's decode rows; columns ``_DC`` hold zeros.
    """
    return Outcome(
        *[np.zeros((decoding, places), kind) if wide else np.empty(decoding, kind) for wide, kind in _SHAPES]
    )


@kernel
def _place(position, kv_entry, first, count, index, pages, slot, page_size):  # type: ignore[no-untyped-def]
    """Position and KV slot of ``count`` rows from row ``first`` and KV index ``index`` on."""
    for r in range(count):
        at = index + r
        position[first + r] = at
        kv_entry[first + r] = pages[slot, at // page_size] * page_size + at % page_size


@kernel
def pack_rows(plan, windows, tokens, pages, page_size, rows, picks):  # type: ignore[no-untyped-def]
    """Write the rows of a forward, each sequence's prefill rows before its decode rows, and the picks among them.

    Args:
        plan: :class:`Plan`; its decode rows are exact.
        windows: :class:`Windows`.
        tokens: int64 ``[slots, positions]``, from which prefill rows are read.
        pages: int64 ``[slots, P]`` page tables.
        page_size: KV entries per page.
        rows: :class:`Rows`, written.
        picks: :class:`Picks`, written: every decode row, in the order of the rows.
    """
    # Fields that a loop uses are taken out of their tuples before it: inside, each use would count references.
    slots, cached, prefill, decode = plan
    window_token, lead, head = windows.token, windows.lead, windows.head
    row_token, position, kv_entry = rows
    pick_row, pick_slot, pick_position = picks
    row, number = 0, 0
    for s in range(len(slots)):
        slot = slots[s]
        _place(position, kv_entry, row, prefill[s] + decode[s], cached[s], pages, slot, page_size)
        for r in range(prefill[s]):
            row_token[row + r] = tokens[slot, cached[s] + r]
        row += prefill[s]
        for r in range(decode[s]):
            row_token[row + r] = window_token[slot, r - 1] if r else head[slot]
            pick_row[number + r] = row + r
            pick_slot[number + r] = slot
            # Head and drafts choose the token after theirs, masks their own.
            pick_position[number + r] = position[row + r] + (1 if r <= lead[slot] else 0)
        row += decode[s]
        number += decode[s]


@kernel
def _agreed(token, slot, drafts, chosen, first):  # type: ignore[no-untyped-def]
    """How many drafts, from the first, are what the row before them chose."""
    j = 0
    while j < drafts and token[slot, j] == chosen[first + j]:
        j += 1
    return j


@kernel
def _proposal(token, slot, drafts, chosen, first, rows):  # type: ignore[no-untyped-def]
    """What the first mask proposes, for the slot that the last draft's row decides; without a mask 0."""
    if drafts >= token.shape[1]:
        return token[slot, token.shape[1] - 1]
    return chosen[first + drafts + 1] if drafts + 1 < rows else 0


@kernel
def _shift(token, slot, drafts, filled, count, chosen, first):  # type: ignore[no-untyped-def]
    """Drop ``count`` slots from the left; behind the drafts come what masks proposed, ``filled`` slots in all."""
    for j in range(filled):
        source = j + count  # the row of slot j is row j + 1
        token[slot, j] = token[slot, source] if source < drafts else chosen[first + source + 1]


@kernel
def _is_stop(token, stops, slot):  # type: ignore[no-untyped-def]
    for k in range(stops.shape[1]):
        if stops[slot, k] < 0:
            return False
        if stops[slot, k] == token:
            return True
    return False


@kernel
def _kept(token, slot, most, stops):  # type: ignore[no-untyped-def]
    """How many of the first ``most`` slots stand up to and including a stop token, and whether one is the last."""
    for j in range(most):
        if _is_stop(token[slot, j], stops, slot):
            return j + 1, True
    return max(most, 0), False


@kernel
def _mask_behind(token, filled, early, slot, drafts, last, mask):  # type: ignore[no-untyped-def]
    """Slots under ``drafts`` are filled, those from there to ``last`` masks."""
    for j in range(drafts):
        filled[slot, j] = True
    for j in range(drafts, last):
        token[slot, j] = mask
        filled[slot, j] = False
        early[slot, j] = False


@kernel
def _report(plan, choices, outcome):  # type: ignore[no-untyped-def]
    """What the rows of each sequence chose."""
    decode, (token, entropy, logprob) = plan.decode, choices
    token_DC, entropy_DC, logprob_DC = outcome.token_DC, outcome.entropy_DC, outcome.logprob_DC
    first = 0
    for d in range(len(token_DC)):
        for r in range(decode[d]):
            token_DC[d, r] = token[first + r]
            entropy_DC[d, r] = entropy[first + r]
            logprob_DC[d, r] = logprob[first + r]
        first += decode[d]


@kernel
def _commit(plan, chosen, windows, tokens, outcome):  # type: ignore[no-untyped-def]
    """Commit the agreeing drafts and the choice after them; what is left are ``length`` proposals, to be refilled."""
    slots, cached, prefill, decode = plan
    token, _, _, length, lead, head, emitted, valid = windows
    count_D, context_D, drafts_D = outcome.count_D, outcome.context_D, outcome.drafts_D
    agreed_D, offered_D = outcome.agreed_D, outcome.offered_D
    valid_D, next_valid_D = outcome.valid_D, outcome.next_valid_D
    first = 0
    for d in range(len(count_D)):
        slot, drafts = slots[d], lead[slots[d]]
        agreed = _agreed(token, slot, drafts, chosen, first)
        count, last = agreed + 1, chosen[first + agreed]
        position = cached[d] + prefill[d] + 1
        for j in range(count):
            tokens[slot, position + j] = chosen[first + j]
        whole = agreed == drafts and _proposal(token, slot, drafts, chosen, first, decode[d]) == last
        count_D[d], context_D[d], drafts_D[d] = count, count, min(drafts, count)
        agreed_D[d], offered_D[d] = agreed, drafts
        valid_D[d], next_valid_D[d] = valid[slot], whole
        valid[slot], head[slot] = whole, last
        emitted[slot] += count
        length[slot] = max(length[slot] - count, 0)
        _shift(token, slot, drafts, length[slot], count, chosen, first)
        first += decode[d]


@kernel
def _refill(slots, windows, limits, mask, next_rows_D):  # type: ignore[no-untyped-def]
    """Keep drafts as the allocation has it, up to ``max_tokens`` and a stop token; masks follow where useful."""
    token, filled, early, length, lead, _, emitted, valid = windows
    window, keep_valid, keep_stale, limit, stops = limits
    for d in range(len(next_rows_D)):
        slot = slots[d]
        left = max(limit[slot] - emitted[slot], 0)
        most = min(keep_valid[slot] if valid[slot] else keep_stale[slot], left)
        drafts, stopped = _kept(token, slot, min(most, length[slot]), stops)
        _mask_behind(token, filled, early, slot, drafts, max(lead[slot], length[slot]), mask)
        lead[slot] = drafts
        length[slot] = drafts + (0 if stopped else min(window[slot], left - drafts))
        next_rows_D[d] = length[slot] + 1


@kernel
def advance_windows(plan, choices, windows, limits, mask, tokens, outcome):  # type: ignore[no-untyped-def]
    """Commit the agreeing drafts and the token after them, refill the windows, remember the tokens.

    Args:
        plan: :class:`Plan` of the forward.
        choices: :class:`Choices` on the picks of :func:`pack_rows`.
        windows: :class:`Windows`, moved on and refilled. Slots behind the drafts are masks, before and after.
        limits: :class:`Limits`.
        mask: id of the mask token.
        tokens: int64 ``[slots, positions]``; what is committed is written to its positions.
        outcome: :class:`Outcome`, written; C is at least any sequence's decode rows.
    """
    _report(plan, choices, outcome)
    _commit(plan, choices.token, windows, tokens, outcome)
    _refill(plan.slot, windows, limits, mask, outcome.next_rows_D)
