"""All layers of a decoder as one kernel, which the threads of a team run together.

Kernels that depend on number types are compiled apart, once for each: products (:mod:`.forward_products`) by the
weights' type, the KV pool's (:mod:`.cached_attention`) by the type of keys and values. A forward calls them by their
addresses.
"""

from __future__ import annotations

import functools

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at, floats_at, numbers_at
from wedlm_core.kernels.cpu.attention import group_space
from wedlm_core.kernels.cpu.cached_attention import ATTENDERS, PLACERS
from wedlm_core.kernels.cpu.compiled import c_function, call_at, kernel
from wedlm_core.kernels.cpu.forward_products import PRODUCTS
from wedlm_core.kernels.cpu.layer import add_rms_norm, rms_norm, silu_mul
from wedlm_core.kernels.cpu.records import (
    DOWN_PLACE,
    GATE_UP_PLACE,
    HEAD_PLACE,
    LAYER,
    O_PLACE,
    QKV_PLACE,
    layer_at,
    task_at,
)
from wedlm_core.kernels.cpu.rows_read import find_spans, pick_rows_read, row_lines, take_only_tokens
from wedlm_core.kernels.cpu.sampling import choose_row, likely, scratch_of
from wedlm_core.kernels.cpu.scalar import F32
from wedlm_core.kernels.cpu.step import STATE, Choices, Outcome, Plan, advance_windows
from wedlm_core.kernels.cpu.team_kernels import STATE_SIZE, by_rows, meet, part_of, take
from wedlm_core.kernels.cpu.tile import address as address_of

_LINE_BYTES = LAYER.itemsize


@kernel
def _gather(x, rows, out, first, last):  # type: ignore[no-untyped-def]
    """Copy a part of ``rows`` of x to ``out``."""
    for r in range(first, last):
        out[r] = x[rows[r]]


@kernel
def _choose(choice, logits, state, me, members):  # type: ignore[no-untyped-def]
    """Tokens of all picks, those of rows of logits each taken by whoever is free; after a :func:`meet`."""
    picks, (count, size) = choice.picks, logits.shape
    slots, positions = numbers_at(choice.pick_slots, picks), numbers_at(choice.pick_positions, picks)
    temperature, seeds = (
        array_at(choice.temperature, (choice.slots,), np.float32),
        numbers_at(choice.seeds, choice.slots),
    )
    suppress = array_at(choice.suppress, (choice.slots,), np.uint8)
    bits = array_at(choice.bits, (choice.bit_lines, choice.bit_words), np.uint32)
    lines, logit_picks = _lines_of(choice), numbers_at(choice.logit_picks, picks)
    tokens, entropies = numbers_at(choice.tokens, picks), array_at(choice.entropies, (picks,), np.float32)
    logprobs, flat = array_at(choice.logprobs, (picks,), np.float32), logits.reshape(logits.size)
    if count < picks:
        first, last = part_of(picks, me, members)
        take_only_tokens(lines, slots, choice.adjustments, tokens, entropies, logprobs, first, last)
    min_p = array_at(choice.min_p, (choice.slots,), np.float32)
    top_p = array_at(choice.top_p, (choice.slots,), np.float32)
    reports = numbers_at(choice.reports, choice.slots)
    top_tokens = array_at(choice.top_tokens, (picks, choice.most), np.int64)
    top_logprobs = floats_at(choice.top_logprobs, picks, choice.most)
    top_k, scratch = numbers_at(choice.top_k, choice.slots), scratch_of(size)
    r = take(state)
    while r < count:
        p = logit_picks[r]
        slot = slots[p]
        line = lines[p] if len(lines) > 0 else -1
        tokens[p], entropies[p], logprobs[p], top, log_mass = choose_row(
            logits, flat, r, temperature[slot], (min_p[slot], top_k[slot], top_p[slot]), seeds[slot], slot,
            positions[p], suppress[slot] != 0, choice.adjustments, bits, line, choice.mask_token, choice.vocab_limit,
            scratch,
        )  # fmt: skip
        if line <= -2:  # NaN says that the logits are no numbers
            entropies[p] = entropies[p] if np.isnan(entropies[p]) else F32(0.0)
            logprobs[p] = logprobs[p] if np.isnan(logprobs[p]) else F32(0.0)
        if choice.most and reports[slot]:
            likely(flat, r * size, size, top, log_mass, scratch, top_tokens[p], top_logprobs[p])
        r = take(state)


@kernel
def _lines_of(choice):  # type: ignore[no-untyped-def]
    """Tokens that picks may choose; empty where none is restricted."""
    return numbers_at(choice.lines, choice.picks if choice.states else 0)


@kernel
def _plan_last_layer(task):  # type: ignore[no-untyped-def]
    """Find the rows that are read after the last layer, and their spans."""
    choice, read = task.choice, numbers_at(task.read, 1 + task.rows)
    if choice.picks:
        picks, slots = choice.picks, choice.slots
        if choice.states:
            row_lines(
                numbers_at(choice.pick_slots, picks), numbers_at(choice.pick_positions, picks),
                numbers_at(choice.first_states, slots), numbers_at(choice.slot_states, slots),
                numbers_at(choice.state_positions, slots), numbers_at(choice.states, choice.state_count), -1,
                numbers_at(choice.lines, picks),
            )  # fmt: skip
        pick_rows = numbers_at(choice.pick_rows, picks)
        pick_slots, logit_picks = numbers_at(choice.pick_slots, picks), numbers_at(choice.logit_picks, picks)
        pick_rows_read(pick_rows, _lines_of(choice), pick_slots, choice.adjustments, read, logit_picks)
    if 0 <= read[0] < task.rows:
        starts, counts = numbers_at(task.starts, task.sequences), numbers_at(task.counts, task.sequences)
        spans = array_at(task.last_spans, (3, task.sequences), np.int64)
        find_spans(numbers_at(task.read + 8, read[0]), starts, counts, numbers_at(task.cached, task.sequences), spans)


@kernel
def _advance(advance, choice):  # type: ignore[no-untyped-def]
    """Commit chosen tokens and refill windows."""
    spans = array_at(advance.spans, (6, advance.columns), np.int64)
    count, places = advance.decoding, advance.places
    outcome = Outcome(
        array_at(advance.counts, (6, count), np.int64),
        array_at(advance.flags, (2, count), np.bool_),
        array_at(advance.token, (count, places), np.int64),
        array_at(advance.nats, (2, count, places), np.float32),
        array_at(advance.early, (count, places), np.bool_),
    )
    choices = Choices(
        numbers_at(choice.tokens, choice.picks),
        array_at(choice.entropies, (choice.picks,), np.float32),
        array_at(choice.logprobs, (choice.picks,), np.float32),
    )
    states = array_at(advance.states, (1,), STATE)
    advance_windows(Plan(spans[3], spans[2], spans[4], spans[5]), choices, states, advance.mask, outcome)


@kernel
def _run_layers(task_address, me, members):  # type: ignore[no-untyped-def]
    """All layers; returns how many rows are after the last."""
    task = task_at(task_address)
    state, rows = numbers_at(task.state, STATE_SIZE), task.rows
    stream, normed = floats_at(task.stream, rows, task.hidden), floats_at(task.normed, rows, task.hidden)
    gate_up, gated = floats_at(task.gate_up, rows, 2 * task.inner), floats_at(task.gated, rows, task.inner)
    delta, wide = floats_at(task.delta, rows, task.hidden), task.heads * task.dim
    space = group_space(task.dim, task.width)
    starts, counts, cached = task.starts, task.counts, task.cached
    places = numbers_at(task.read, 0)
    context, (first, last) = task.context, part_of(rows, me, members)
    weight = array_at(layer_at(task.lines).input_norm, (task.hidden,), np.float32)
    rms_norm(stream, weight, task.eps, normed, first, last)
    for number in range(task.layers):
        line = task.lines + number * _LINE_BYTES
        layer = layer_at(line)
        call_at(task.product, (task_address, rows, task.normed, line + QKV_PLACE, task.qkv, me, members))
        call_at(task.place, (task_address, line, me, members))
        meet(state, members)
        read = numbers_at(task.read, 1 + rows)
        narrows_down = number + 1 == task.layers and 0 <= read[0] < rows
        if narrows_down:
            rows = read[0]
            if rows == 0:
                break
            places = numbers_at(task.read + 8, rows)
            starts, span_bytes = task.last_spans, 8 * task.sequences
            counts, cached = starts + span_bytes, starts + 2 * span_bytes
        call_at(task.attend, (task_address, line, starts, counts, cached, address_of(space), members))
        meet(state, members)
        if narrows_down:
            first, last = part_of(rows, me, members)
            context = task.qkv  # as wide at least, and read by no one any more
            _gather(floats_at(task.context, task.rows, wide), places, floats_at(context, rows, wide), first, last)
        call_at(task.product, (task_address, rows, context, line + O_PLACE, task.delta, me, members))
        weight = array_at(layer.post_norm, (task.hidden,), np.float32)
        add_rms_norm(stream, delta, weight, task.eps, normed, places, first, last)
        call_at(task.product, (task_address, rows, task.normed, line + GATE_UP_PLACE, task.gate_up, me, members))
        silu_mul(gate_up, gated, first, last)
        call_at(task.product, (task_address, rows, task.gated, line + DOWN_PLACE, task.delta, me, members))
        following = task.final_norm if number + 1 == task.layers else layer_at(line + _LINE_BYTES).input_norm
        weight = array_at(following, (task.hidden,), np.float32)
        add_rms_norm(stream, delta, weight, task.eps, normed, places, first, last)
    return rows


@kernel
def join(address):  # type: ignore[no-untyped-def]
    """Compute a task as one of its members.

    Args:
        address: of three int64: of the task, the number of the member, and how many there are.
    """
    task_address, me, members = numbers_at(address, 3)
    task = task_at(task_address)
    state = numbers_at(task.state, STATE_SIZE)
    if task.layers == 0:
        call_at(task.product, (task_address, task.rows, task.normed, task_address + HEAD_PLACE, task.out, me, members))
        return
    if me == 0:
        _plan_last_layer(task)  # members meet before anyone reads that
    rows = _run_layers(task_address, me, members)
    if task.choice.picks == 0:
        meet(state, members)  # the leader goes on when all are done
        return
    if rows:
        call_at(task.product, (task_address, rows, task.normed, task_address + HEAD_PLACE, task.out, me, members))
    if rows == 0 or by_rows(task, rows, members):
        meet(state, members)
    _choose(task.choice, floats_at(task.out, rows, task.head.outputs), state, me, members)
    meet(state, members)
    if me == 0 and task.advance.decoding:
        _advance(task.advance, task.choice)


@functools.cache
def join_entry() -> int:
    """The address of :func:`join`, compiled once for callers in C; so are the next ones."""
    return c_function(join)


@functools.cache
def product_of(numbers: str) -> int:
    """The address of ``product`` in :mod:`wedlm_core.kernels.cpu.forward_products`; ``numbers`` of weights."""
    return c_function(PRODUCTS[numbers])


@functools.cache
def place_of(held: str) -> int:
    """The address of ``place`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(PLACERS[held])


@functools.cache
def attend_of(held: str) -> int:
    """The address of ``attend`` in :mod:`wedlm_core.kernels.cpu.cached_attention`; ``held``: numbers of the KV pool."""
    return c_function(ATTENDERS[held])
