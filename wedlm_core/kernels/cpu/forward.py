"""All layers of a decoder as one kernel, which the threads of a team run together.

Records describe a forward: :data:`TASK` its sizes and the addresses of its arrays, :data:`LAYER` the parameters of a
layer, :data:`PRODUCT` one of its four products. Fields are int64 where nothing else is said, and addresses where they
are no sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wedlm_core.kernels.cpu.attention import GROUPS, QUERIES, Group, Pool, bits_of, group_space
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.digits import split_rows
from wedlm_core.kernels.cpu.eight_bits import round_rows, round_to_bfloat16, sum_rows
from wedlm_core.kernels.cpu.grammar_rows import row_lines
from wedlm_core.kernels.cpu.layer import add_rms_norm, place_heads, rms_norm, silu_mul
from wedlm_core.kernels.cpu.panels import (
    has_digits,
    multiply_panels,
    numbers_here,
    numeric_kind,
    pieces,
    row_step,
    tile_rows,
)
from wedlm_core.kernels.cpu.rows_read import find_spans, pick_rows_read, take_only_tokens
from wedlm_core.kernels.cpu.sampling import choose_row
from wedlm_core.kernels.cpu.step import STATE, Choices, Outcome, Plan, advance_windows
from wedlm_core.kernels.cpu.team import STATE_SIZE, meet, take
from wedlm_core.kernels.cpu.views import array_at, floats_at, numbers_at

__all__ = ["ADVANCE", "CHOICE", "JOINED", "LAYER", "PRODUCT", "TASK"]


def _record(text: str, **others: Any) -> np.dtype[Any]:
    return np.dtype([(name, others.get(name, np.int64)) for name in text.split()])


PRODUCT = _record("weight scale bias depth outputs inputs")
"""``depth``: units of four bytes of a row (:mod:`.panels`); ``scale`` is not read for weights that are floats."""
LAYER = _record(
    "input_norm post_norm q_norm k_norm keys values key_scales value_scales qkv o gate_up down",
    qkv=PRODUCT, o=PRODUCT, gate_up=PRODUCT, down=PRODUCT,
)  # fmt: skip
"""``q_norm, k_norm``: 0 where the model has none. ``keys`` to ``value_scales``: of the KV pool."""
CHOICE = _record(
    "picks pick_rows pick_slots pick_positions slots temperature seeds suppress bits bit_lines bit_words "
    "states state_count first_states slot_states state_positions lines mask_token vocab_limit tokens entropies "
    "logprobs logit_picks",
)
"""How tokens are chosen at the end of a forward.

- ``picks``: rows that need a token; 0 ends the forward with ``normed``. Only those that may choose among several need
  logits.
- ``pick_rows, pick_slots, pick_positions``: int64 ``[picks]``, the row, ascending, its engine slot, and the position of
  the token that is chosen.
- ``temperature, seeds, suppress``: float32, int64 and bool ``[slots]``.
- ``bits, bit_lines, bit_words``: uint32 ``[bit_lines, bit_words]``, as in
  :func:`wedlm_core.kernels.cpu.sampling.choose_rows`.
- ``states, state_count``, and ``first_states, slot_states, state_positions``: int64 ``[state_count]`` and ``[slots]``,
  as in :func:`wedlm_core.kernels.cpu.grammar_rows.row_lines`; ``states`` is 0 where no row is restricted.
- ``lines``: int64 ``[picks]``, written where rows are restricted: the line of each.
- ``tokens, entropies, logprobs``: int64, float32 and float32 ``[picks]``, written.
- ``logit_picks``: int64 ``[picks]``, written: the pick of each row of logits.
"""
ADVANCE = _record("decoding columns spans states mask places counts flags token nats early")
"""How windows advance behind the choice: what :func:`wedlm_core.kernels.cpu.step.advance_windows` takes.

- ``decoding``: D, sequences; 0 leaves windows as they are.
- ``columns, spans``: int64 ``[6, columns]``, as :func:`wedlm_core.kernels.cpu.step.pack_rows` wrote them.
- ``states, mask``: address of one record :data:`wedlm_core.kernels.cpu.step.STATE`, and the mask's id.
- ``places``: C of the outcome, whose arrays are the others.
"""
TASK = _record(
    "state rows layers hidden inner heads kv_heads dim eps "
    "stream normed q context gated qkv gate_up delta narrow narrow_step row_scale row_sum apart "
    "cos sin reach positions entries "
    "blocks block kv_entries pages page_columns starts counts cached page_size sequences width scale "
    "lines final_norm head out read last_spans choice advance",
    eps=np.float32, scale=np.float32, head=PRODUCT, choice=CHOICE, advance=ADVANCE,
)  # fmt: skip
"""Of a forward or of one product.

- ``state``: of the team.
- ``stream``: float32 ``[rows, hidden]``, the embedded rows, changed.
- ``normed, q, context, gated, qkv, gate_up, delta``: float32 scratch as wide as the model has them.
- ``narrow, row_scale, row_sum``: scratch for rows in the numbers of the weights, ``narrow_step`` bytes each at most.
- ``apart``: rows for each member from which members take rows of a product, and not outputs (:func:`_by_rows`); 0 where
  they never do.
- ``cos, sin``: float32 ``[reach, dim / 2]``.
- ``blocks`` to ``scale``: the KV pool, and what :func:`wedlm_core.kernels.cpu.attention.attend` needs.
- ``lines``: the layers.
- ``head, out``: the product that gives logits, and its result ``[rows, outputs]``: of the rows that are read where
  tokens are chosen; with 0 layers of all of ``normed``, and nothing else is computed.
- ``read``: int64 ``[1 + rows]``, how many rows are read behind the last layer, and which, ascending: written where
  tokens are chosen, else told; -1 where all are. ``normed`` holds these at the end.
- ``last_spans``: scratch, int64 ``[3, sequences]``.
- ``choice, advance``: how tokens are chosen, and what follows.
"""


_LEAST_ROWS = 4
"""Rows for each member from which members take rows where there is a choice: fewer are shared by heads."""


@kernel
def _part(count, me, members):  # type: ignore[no-untyped-def]
    """The items of a member: ``(first, last)``."""
    return count * me // members, count * (me + 1) // members


@kernel
def _by_rows(task, rows, members, step):  # type: ignore[no-untyped-def]
    """Whether each member computes all outputs of its part of the rows, not some outputs of all rows.

    Then no member reads what another has written but in attention: they need not wait for each other, and no cache line
    goes from core to core. But each of them reads all weights. So it pays where rows are many.
    """
    many = task.apart > 0 and members * max(task.apart, _LEAST_ROWS, step) <= rows
    return many and members > 1 and task.layers > 0  # behind a product alone, nothing else waits for all


@kernel
def _rows_of(task, rows, me, members, step):  # type: ignore[no-untyped-def]
    """The rows of a member, ``(first, last)``; by rows whole blocks of ``step``, in which they are held."""
    block = step if _by_rows(task, rows, members, step) else 1
    first, last = _part((rows + block - 1) // block, me, members)
    return min(first * block, rows), min(last * block, rows)


@kernel
def _gather(x, rows, out, first, last):  # type: ignore[no-untyped-def]
    """Copy a part of ``rows`` of x to ``out``."""
    for r in range(first, last):
        out[r] = x[rows[r]]


@kernel
def _choose(choice, logits, state, me, members):  # type: ignore[no-untyped-def]
    """Tokens of all picks, those of rows of logits each taken by whoever is free; behind a :func:`meet`."""
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
        first, last = _part(picks, me, members)
        take_only_tokens(lines, tokens, entropies, logprobs, first, last)
    scaled, noise = np.empty(size, dtype=np.float32), np.empty(32, dtype=np.float32)
    r = take(state)
    while r < count:
        p = logit_picks[r]
        slot = slots[p]
        line = lines[p] if len(lines) > 0 else -1
        tokens[p], entropies[p], logprobs[p] = choose_row(
            logits, flat, r, temperature[slot], seeds[slot], positions[p], suppress[slot] != 0, bits, line,
            choice.mask_token, choice.vocab_limit, scaled, noise,
        )  # fmt: skip
        r = take(state)


@kernel
def _lines_of(choice):  # type: ignore[no-untyped-def]
    """What picks may choose; empty where none is restricted."""
    return numbers_at(choice.lines, choice.picks if choice.states else 0)


@kernel
def _plan_last_layer(task):  # type: ignore[no-untyped-def]
    """Find the rows that are read behind the last layer, and their spans."""
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
        pick_rows_read(pick_rows, _lines_of(choice), read, numbers_at(choice.logit_picks, picks))
    if 0 <= read[0] < task.rows:
        starts, counts = numbers_at(task.starts, task.sequences), numbers_at(task.counts, task.sequences)
        spans = array_at(task.last_spans, (3, task.sequences), np.int64)
        find_spans(numbers_at(task.read + 8, read[0]), starts, counts, numbers_at(task.cached, task.sequences), spans)


@kernel
def _advance(advance, choice):  # type: ignore[no-untyped-def]
    """Commit what was chosen and refill windows."""
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


def _narrowing(numbers: str) -> Any:
    """A kernel that converts rows ``first .. last - 1`` of ``x`` and writes them at ``to``, rows behind each other.

    It returns where the first of all rows is, or would be, and the bytes of a row: of x itself where nothing changes.
    """
    kind = numeric_kind(numbers)
    if has_digits(numbers):

        @kernel(label=f"_{numbers}")
        def to_digits(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            wide, scale = floats_at(x, rows, product.inputs), array_at(task.row_scale, (rows,), np.float32)
            split_rows(wide, product.depth, to, scale, first, last)
            return to, 4 * product.depth

        return to_digits
    if kind == "float32":

        @kernel(label=f"_{numbers}")
        def as_they_are(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            return x, 4 * product.depth

        return as_they_are
    if kind == "bfloat16":

        @kernel(label=f"_{numbers}")
        def to_bfloat16(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            bits = array_at(x, (rows, product.inputs), np.uint32)
            round_to_bfloat16(bits, array_at(to, (rows, 2 * product.depth), np.uint16), first, last)
            return to, 4 * product.depth

        return to_bfloat16
    if kind == "int8":

        @kernel(label=f"_{numbers}")
        def to_int8(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
            wide, byte = floats_at(x, rows, product.inputs), array_at(to, (rows, 4 * product.depth), np.int8)
            round_rows(wide, byte, array_at(task.row_scale, (rows,), np.float32), first, last)
            sum_rows(byte, 128, array_at(task.row_sum, (rows,), np.int32), first, last)
            return to, 4 * product.depth

        return to_int8

    @kernel(label=f"_{numbers}")
    def to_int16(task, rows, x, product, to, first, last):  # type: ignore[no-untyped-def]
        wide, byte = floats_at(x, rows, product.inputs), array_at(to, (rows, 2 * product.depth), np.int16)
        round_rows(wide, byte, array_at(task.row_scale, (rows,), np.float32), first, last)
        return to, 4 * product.depth

    return to_int16


_HELD = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}
"""Numbers of keys and values, and as what kernels see them."""
_PARTS = {numbers: (_narrowing(numbers), multiply_panels(numbers)) for numbers in numbers_here()}


def _producing(numbers: str) -> Any:
    """The kernel of one product; ``numbers`` of weights and of the rows that meet them."""
    (narrow, multiply), narrows, together = _PARTS[numbers], numbers != "float32", tile_rows(numbers)
    block = row_step(numbers)

    @kernel(label=f"_{numbers}")
    def product(task, rows, x, one, out, me, members, state):  # type: ignore[no-untyped-def]
        """``out = x @ weight.T + bias``, of rows of x that members have written each in its part, or all waited for.

        All of out is there when it returns; by rows (:func:`_by_rows`), a member's part of it.
        """
        by_rows, (first, last) = _by_rows(task, rows, members, block), _rows_of(task, rows, me, members, block)
        # By rows, a member may be a product ahead of another, whose rows of another width must not be in its way.
        offset = first * (task.narrow_step - 4 * one.depth) if by_rows else 0
        own, step = narrow(task, rows, x, one, task.narrow + offset, first, last)
        if not by_rows:
            if narrows or x == task.normed:
                meet(state, members)
            first, last = 0, rows
        count = last - first
        begin, end = _part(pieces(count, one.outputs, together), 0 if by_rows else me, 1 if by_rows else members)
        multiply(
            own + first * step, step, one.weight, one.depth, out + 4 * one.outputs * first, 4 * one.outputs, one.bias,
            one.scale, task.row_scale + 4 * first, task.row_sum + 4 * first, count, one.outputs, begin, end,
        )  # fmt: skip
        if not by_rows:
            meet(state, members)

    return product


def _placing(held: str) -> Any:
    """The kernel that writes keys and values; ``held``: their numbers."""
    kept = _HELD[held]

    @kernel(label=f"_{held}")
    def place(task, layer, me, members, block):  # type: ignore[no-untyped-def]
        """Queries to ``task.q``, keys and values to the pool: by rows, or by heads where rows are few."""
        rows, dim = task.rows, task.dim
        qkv = floats_at(task.qkv, rows, layer.qkv.outputs)
        q_norm = array_at(layer.q_norm, (dim if layer.q_norm else 0,), np.float32)
        k_norm = array_at(layer.k_norm, (dim if layer.k_norm else 0,), np.float32)
        cos, sin = floats_at(task.cos, task.reach, dim // 2), floats_at(task.sin, task.reach, dim // 2)
        positions, entries = numbers_at(task.positions, rows), numbers_at(task.entries, rows)
        q = floats_at(task.q, rows, task.heads * dim)
        keys = array_at(layer.keys, (task.kv_heads, task.blocks, dim, task.block), kept)
        values = array_at(layer.values, (task.kv_heads, task.kv_entries, dim), kept)
        key_scales = floats_at(layer.key_scales, task.kv_heads, task.kv_entries)
        value_scales = floats_at(layer.value_scales, task.kv_heads, task.kv_entries)
        first, last = 0, rows
        low, high = 0, task.kv_heads
        if rows >= _LEAST_ROWS * members:
            first, last = _rows_of(task, rows, me, members, block)
        else:
            low, high = _part(task.kv_heads, me, members)
        place_heads(
            qkv, q_norm, k_norm, task.eps, cos, sin, positions, entries, task.heads, q, keys, values, key_scales,
            value_scales, first, last, low, high,
        )  # fmt: skip

    return place


def _attending(held: str) -> Any:
    """The kernel of attention; ``held``: numbers of keys and values."""
    attend_group = GROUPS[held]

    @kernel(label=f"_{held}")
    def attend(task, layer, starts, counts, cached, space, members, state):  # type: ignore[no-untyped-def]
        """Attention of groups of queries of these spans, each taken by whoever is free."""
        group, columns = task.heads // task.kv_heads, 8 * task.page_columns
        pool = Pool(
            layer.keys, layer.values, layer.key_scales, layer.value_scales, task.kv_entries, task.block,
            bits_of(task.page_size), task.dim, task.kv_heads, group, task.q, task.context, task.scale,
        )  # fmt: skip
        passed, mine = 0, take(state)
        for s in range(task.sequences):
            queries = counts[s] * group
            groups = (queries + QUERIES - 1) // QUERIES
            while mine < passed + groups * task.kv_heads:
                h, m = (mine - passed) // groups, (mine - passed) % groups * QUERIES
                # If all groups take as long, so many further on is the next that is free.
                later, after = (mine - passed + members) // groups, s
                if later >= task.kv_heads:
                    later, after = later % task.kv_heads, min(s + later // task.kv_heads, task.sequences - 1)
                one = Group(
                    task.pages + columns * s, starts[s], cached[s], m, min(QUERIES, queries - m), h,
                    task.pages + columns * after, cached[after] + 1, later,
                )  # fmt: skip
                attend_group(pool, one, space, task.width)
                mine = take(state)
            passed += groups * task.kv_heads

    return attend


_PRODUCTS = {numbers: _producing(numbers) for numbers in _PARTS}
_READERS = {held: (_placing(held), _attending(held)) for held in _HELD}


def _layering(numbers: str, held: str) -> Any:
    """The kernel of all layers: see :func:`_runner`. It returns how many rows are behind the last."""
    product, (place, attend), narrows = _PRODUCTS[numbers], _READERS[held], numbers != "float32"
    block = row_step(numbers)

    @kernel(label=f"_{numbers}_{held}")
    def run_layers(task, state, me, members):  # type: ignore[no-untyped-def]
        rows = task.rows
        lines = array_at(task.lines, (task.layers,), LAYER)
        stream, normed = floats_at(task.stream, rows, task.hidden), floats_at(task.normed, rows, task.hidden)
        gate_up, gated = floats_at(task.gate_up, rows, 2 * task.inner), floats_at(task.gated, rows, task.inner)
        delta, wide = floats_at(task.delta, rows, task.hidden), task.heads * task.dim
        space = group_space(task.dim, task.width)
        starts, counts = numbers_at(task.starts, task.sequences), numbers_at(task.counts, task.sequences)
        cached, places = numbers_at(task.cached, task.sequences), numbers_at(task.read, 0)
        context, (first, last) = task.context, _rows_of(task, rows, me, members, block)
        weight = array_at(lines[0].input_norm, (task.hidden,), np.float32)
        rms_norm(stream, weight, task.eps, normed, first, last)
        for number in range(task.layers):
            layer = lines[number]
            product(task, rows, task.normed, layer.qkv, task.qkv, me, members, state)
            place(task, layer, me, members, block)
            meet(state, members)
            read = numbers_at(task.read, 1 + rows)
            narrows_down = number + 1 == task.layers and 0 <= read[0] < rows
            if narrows_down:
                rows = read[0]
                if rows == 0:
                    break
                places = numbers_at(task.read + 8, rows)
                spans = array_at(task.last_spans, (3, task.sequences), np.int64)
                starts, counts, cached = spans[0], spans[1], spans[2]
            attend(task, layer, starts, counts, cached, space, members, state)
            meet(state, members)
            if narrows_down:
                first, last = _rows_of(task, rows, me, members, block)
                context = task.qkv  # as wide at least, and read by no one any more
                _gather(floats_at(task.context, task.rows, wide), places, floats_at(context, rows, wide), first, last)
                if not narrows and not _by_rows(task, rows, members, block):
                    meet(state, members)
            product(task, rows, context, layer.o, task.delta, me, members, state)
            weight = array_at(layer.post_norm, (task.hidden,), np.float32)
            add_rms_norm(stream, delta, weight, task.eps, normed, places, first, last)
            product(task, rows, task.normed, layer.gate_up, task.gate_up, me, members, state)
            silu_mul(gate_up, gated, first, last)
            if not narrows and not _by_rows(task, rows, members, block):
                meet(state, members)
            product(task, rows, task.gated, layer.down, task.delta, me, members, state)
            following = task.final_norm if number + 1 == task.layers else lines[number + 1].input_norm
            weight = array_at(following, (task.hidden,), np.float32)
            add_rms_norm(stream, delta, weight, task.eps, normed, places, first, last)
        return rows

    return run_layers


def _runner(numbers: str, held: str) -> Any:
    """The kernel of a whole task.

    Args:
        numbers: of weights and of the rows that meet them.
        held: of keys and values.
    """
    product, run_layers, block = _PRODUCTS[numbers], _layering(numbers, held), row_step(numbers)

    @kernel(label=f"_{numbers}_{held}")
    def run(task, state, me, members):  # type: ignore[no-untyped-def]
        if task.layers == 0:
            product(task, task.rows, task.normed, task.head, task.out, me, members, state)
            return
        if me == 0:
            _plan_last_layer(task)  # members meet before anyone reads that
        rows = run_layers(task, state, me, members)
        if task.choice.picks == 0:
            meet(state, members)  # the leader goes on when all are done
            return
        if rows:
            product(task, rows, task.normed, task.head, task.out, me, members, state)
        if rows == 0 or _by_rows(task, rows, members, block):
            meet(state, members)
        _choose(task.choice, floats_at(task.out, rows, task.head.outputs), state, me, members)
        meet(state, members)
        if me == 0 and task.advance.decoding:
            _advance(task.advance, task.choice)

    return run


_RUNNERS = {(numbers, held): _runner(numbers, held) for numbers in _PARTS for held in _HELD}


def _joined(label: str, run: Any) -> Any:
    """What each thread of a team calls with the address of three numbers: of the task, its own, and of the members."""

    @kernel(label=label)
    def join(address):  # type: ignore[no-untyped-def]
        task_at, me, members = numbers_at(address, 3)
        task = array_at(task_at, (1,), TASK)[0]
        run(task, numbers_at(task.state, STATE_SIZE), me, members)

    return join


JOINED = {kinds: _joined("_" + "_".join(kinds), run) for kinds, run in _RUNNERS.items()}
"""What each thread of a team calls, by the numbers of weights and of keys and values."""
