"""Packing rows and advancing windows for ``verified``: the work of a step besides the model and the choice of tokens.

Integers and copies only, so results equal those of tensor operations bit for bit: :func:`pack_rows` those of the
readable packer (``testing/engine/pack_oracle.py``), :func:`advance_windows` those of
:class:`wedlm_core.decoding.strategies.verified.VerifiedDecoding`. A verified window is drafts, then masks: physical
order is logical, row r of a sequence stands at position ``context + r``, and every decode row needs logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import OUTCOME_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

_SIZES = ("slots", "places", "stops", "positions", "page_columns")
_WINDOWS = ("token", "filled", "early", "length", "lead", "head", "emitted", "valid")
_LIMITS = ("masks", "keep_valid", "keep_stale", "limit", "stop")
STATE = np.dtype([(name, np.int64) for name in (*_SIZES, *_WINDOWS, *_LIMITS, "tokens", "pages")])
"""The state of engine slots: a record of sizes and addresses, since to hand a kernel thirty arrays takes longer than to
run it.

- ``slots, places, stops, positions, page_columns``: sizes.
- ``token`` to ``valid``: windows, as in ``decoding.window.Window``: int64 ``[slots, places]``, bool ``[slots, places]``
  twice, int64 ``[slots]`` four times and bool ``[slots]``.
- ``masks`` to ``stop``: as in ``decoding.window.WindowParams``: int64 ``[slots]`` four times, and ``[slots, stops]``,
  -1 after the last.
- ``tokens``: int64 ``[slots, positions]``, known tokens.
- ``pages``: int64 ``[slots, page_columns]``, page tables.
"""


class Plan(NamedTuple):
    """S sequences, the D with decode rows first; int64 ``[S]`` as in ``engine.scheduler.ForwardPlan``."""

    slot: Array
    cached: Array
    prefill: Array
    decode: Array


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
    """The choices of R picked rows, in the first R places: int64, float32 and float32."""

    token: Array
    entropy: Array
    logprob: Array


class Outcome(NamedTuple):
    """The columns of :class:`wedlm_core.statistics.StepOutcome`, grouped by kind.

    Attributes:
        counts: int64 ``[6, D]``.
        flags: bool ``[2, D]``.
        token: int64 ``[D, C]``.
        nats: float32 ``[2, D, C]``, entropy and log-probability.
        early: bool ``[D, C]``, zeros.
    """

    counts: Array
    flags: Array
    token: Array
    nats: Array
    early: Array


_COUNTS = tuple(name for name, kind in OUTCOME_KINDS.items() if kind == np.int64 and name.endswith("_D"))
_FLAGS = tuple(name for name, kind in OUTCOME_KINDS.items() if kind == np.bool_ and name.endswith("_D"))
_NATS = ("entropy_DC", "logprob_DC")
_COLUMNS = (*_COUNTS, *_FLAGS, *_NATS)
_COUNT, _NEXT_ROWS, _CONTEXT = (_COUNTS.index(name) for name in ("count_D", "next_rows_D", "context_D"))
_DRAFTS, _AGREED, _OFFERED = (_COUNTS.index(name) for name in ("drafts_D", "agreed_D", "offered_D"))
_VALID, _NEXT_VALID = (_FLAGS.index(name) for name in ("valid_D", "next_valid_D"))


def columns_of(outcome: Outcome) -> dict[str, Any]:
    """The columns by name."""
    found: dict[str, Any] = dict(zip(_COLUMNS, (*outcome.counts, *outcome.flags, *outcome.nats), strict=True))
    found["token_DC"], found["early_DC"] = outcome.token, outcome.early
    return found


@kernel
def _place(position, kv_entry, first, count, index, pages, slot, page_size):  # type: ignore[no-untyped-def]
    """Position and KV slot of ``count`` rows from row ``first`` and KV index ``index`` on."""
    for r in range(count):
        at = index + r
        position[first + r] = at
        kv_entry[first + r] = pages[slot, at // page_size] * page_size + at % page_size


@kernel(inline="always")
def _by_slot(state, address):  # type: ignore[no-untyped-def]
    """int64 ``[slots]``."""
    return array_at(address, (state.slots,), np.int64)


@kernel
def _needed(slots, cached, prefill, decode):  # type: ignore[no-untyped-def]
    """Rows, picks and the longest sequence of a forward."""
    total, number, longest = 0, 0, 0
    for s in range(len(slots)):
        own = prefill[s] + decode[s]
        total += own
        number += decode[s]
        longest = max(longest, cached[s] + own)
    return total, number, longest


@kernel
def pack_rows(plan, states, page_size, rows, picks, spans, tables):  # type: ignore[no-untyped-def]
    """Write the rows of a forward, each sequence's prefill rows before its decode rows, and the picks among them.

    Args:
        plan: :class:`Plan`; its decode rows are exact.
        states: one record :data:`STATE`.
        page_size: KV entries per page.
        rows: int64 ``[3, T']``, written: token, logical position and KV slot of each row.
        picks: int64 ``[3, R']``, written: row, engine slot and position of the token that is chosen, of every decode
            row in the order of the rows.
        spans: int64 ``[6, S']``, written: first row, rows, cached entries, slot, prefill and decode rows of each
            sequence.
        tables: int64 ``[N]``, written: page tables of the sequences ``[S, P]``, P pages being as many as the longest
            sequence has.

    Returns:
        How many rows, picks and pages of the longest sequence there are, and its KV entries. Nothing is written where
        there is no room for them.
    """
    # Fields that a loop uses are taken out of their tuples before it: inside, each use would count references.
    slots, cached, prefill, decode = plan
    state = states[0]
    total, number, longest = _needed(slots, cached, prefill, decode)
    deepest = (longest + page_size - 1) // page_size
    if (
        total > rows.shape[1] or number > picks.shape[1] or len(slots) > spans.shape[1]
        or len(slots) * deepest > len(tables)
    ):  # fmt: skip
        return total, number, deepest, longest
    window_token = array_at(state.token, (state.slots, state.places), np.int64)
    lead, head = _by_slot(state, state.lead), _by_slot(state, state.head)
    tokens = array_at(state.tokens, (state.slots, state.positions), np.int64)
    pages = array_at(state.pages, (state.slots, state.page_columns), np.int64)
    row_token, position, kv_entry = rows[0], rows[1], rows[2]
    pick_row, pick_slot, pick_position = picks[0], picks[1], picks[2]
    row, number = 0, 0
    for s in range(len(slots)):
        slot = slots[s]
        spans[0, s], spans[1, s], spans[2, s] = row, prefill[s] + decode[s], cached[s]
        spans[3, s], spans[4, s], spans[5, s] = slot, prefill[s], decode[s]
        for p in range(deepest):
            tables[s * deepest + p] = pages[slot, p]
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
    return row, number, deepest, longest


@kernel
def _agreed(token, slot, drafts, chosen, first):  # type: ignore[no-untyped-def]
    """How many drafts, from the first, equal the choice of the row before them."""
    j = 0
    while j < drafts and token[slot, j] == chosen[first + j]:
        j += 1
    return j


@kernel
def _proposal(token, slot, drafts, chosen, first, rows):  # type: ignore[no-untyped-def]
    """The first mask's proposal, for the slot that the last draft's row decides; without a mask 0."""
    if drafts >= token.shape[1]:
        return token[slot, token.shape[1] - 1]
    return chosen[first + drafts + 1] if drafts + 1 < rows else 0


@kernel
def _shift(token, slot, drafts, filled, count, chosen, first):  # type: ignore[no-untyped-def]
    """Drop ``count`` slots from the left; masks' proposals come after the drafts, ``filled`` slots in all."""
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
def _mask_after(token, filled, early, slot, drafts, last, mask):  # type: ignore[no-untyped-def]
    """Slots under ``drafts`` are filled, those from there to ``last`` masks."""
    for j in range(drafts):
        filled[slot, j] = True
    for j in range(drafts, last):
        token[slot, j] = mask
        filled[slot, j] = False
        early[slot, j] = False


@kernel
def _report(decode, choices, outcome):  # type: ignore[no-untyped-def]
    """The choices of each sequence's rows."""
    token, entropy, logprob = choices
    token_DC, entropy_DC, logprob_DC = outcome.token, outcome.nats[0], outcome.nats[1]
    first = 0
    for d in range(len(token_DC)):
        for r in range(decode[d]):
            token_DC[d, r] = token[first + r]
            entropy_DC[d, r] = entropy[first + r]
            logprob_DC[d, r] = logprob[first + r]
        for r in range(decode[d], token_DC.shape[1]):
            token_DC[d, r], entropy_DC[d, r], logprob_DC[d, r] = 0, np.float32(0.0), np.float32(0.0)
        first += decode[d]


@kernel
def _commit(plan, chosen, state, counts, flags):  # type: ignore[no-untyped-def]
    """Commit the agreeing drafts and the choice after them; ``length`` proposals are left, to be refilled."""
    slots, cached, prefill, decode = plan
    token = array_at(state.token, (state.slots, state.places), np.int64)
    length, lead = _by_slot(state, state.length), _by_slot(state, state.lead)
    head, emitted = _by_slot(state, state.head), _by_slot(state, state.emitted)
    valid = array_at(state.valid, (state.slots,), np.bool_)
    tokens = array_at(state.tokens, (state.slots, state.positions), np.int64)
    first = 0
    for d in range(counts.shape[1]):
        slot, drafts = slots[d], lead[slots[d]]
        agreed = _agreed(token, slot, drafts, chosen, first)
        count, last = agreed + 1, chosen[first + agreed]
        position = cached[d] + prefill[d] + 1
        for j in range(count):
            tokens[slot, position + j] = chosen[first + j]
        whole = agreed == drafts and _proposal(token, slot, drafts, chosen, first, decode[d]) == last
        counts[_COUNT, d], counts[_CONTEXT, d], counts[_DRAFTS, d] = count, count, min(drafts, count)
        counts[_AGREED, d], counts[_OFFERED, d] = agreed, drafts
        flags[_VALID, d], flags[_NEXT_VALID, d] = valid[slot], whole
        valid[slot], head[slot] = whole, last
        emitted[slot] += count
        length[slot] = max(length[slot] - count, 0)
        _shift(token, slot, drafts, length[slot], count, chosen, first)
        first += decode[d]


@kernel
def _refill(slots, state, mask, next_rows_D):  # type: ignore[no-untyped-def]
    """Keep drafts as the allocation has it, up to ``max_tokens`` and a stop token; masks follow where useful."""
    token = array_at(state.token, (state.slots, state.places), np.int64)
    filled = array_at(state.filled, (state.slots, state.places), np.bool_)
    early = array_at(state.early, (state.slots, state.places), np.bool_)
    length, lead, emitted = _by_slot(state, state.length), _by_slot(state, state.lead), _by_slot(state, state.emitted)
    valid, window = array_at(state.valid, (state.slots,), np.bool_), _by_slot(state, state.masks)
    keep_valid, keep_stale = _by_slot(state, state.keep_valid), _by_slot(state, state.keep_stale)
    limit, stops = _by_slot(state, state.limit), array_at(state.stop, (state.slots, state.stops), np.int64)
    for d in range(len(next_rows_D)):
        slot = slots[d]
        left = max(limit[slot] - emitted[slot], 0)
        most = min(keep_valid[slot] if valid[slot] else keep_stale[slot], left)
        drafts, stopped = _kept(token, slot, min(most, length[slot]), stops)
        _mask_after(token, filled, early, slot, drafts, max(lead[slot], length[slot]), mask)
        lead[slot] = drafts
        length[slot] = drafts + (0 if stopped else min(window[slot], left - drafts))
        next_rows_D[d] = length[slot] + 1


@kernel
def advance_windows(plan, choices, states, mask, outcome):  # type: ignore[no-untyped-def]
    """Commit the agreeing drafts and the token after them, refill the windows, remember the tokens.

    Args:
        plan: :class:`Plan` of the forward.
        choices: :class:`Choices` on the picks of :func:`pack_rows`.
        states: one record :data:`STATE`. Windows are moved on and refilled; slots after the drafts are masks, before
            and after the call. Committed tokens are written to their positions.
        mask: id of the mask token.
        outcome: :class:`Outcome`, written but for ``early``; C is at least any sequence's decode rows.
    """
    state = states[0]
    _report(plan.decode, choices, outcome)
    _commit(plan, choices.token, state, outcome.counts, outcome.flags)
    _refill(plan.slot, state, mask, outcome.counts[_NEXT_ROWS])
