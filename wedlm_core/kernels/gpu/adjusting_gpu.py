"""Adjustments of one row of logits on a GPU (Triton): only the tokens that they name are written, on a plane of edits.

The plane of a program has an int32 for each token, zeros between rows: then times that a token occurs, then logits that
were changed. It equals the change of logits in :mod:`wedlm_core.kernels.cpu.adjusting`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.cpu.records import ADJUSTMENTS

_FIELDS = ADJUSTMENTS.names or ()
_COUNTS = tl.constexpr(1 << 22)
"""Integers from 1 to here are times; others are the inverted bits of a float32, where these would be no numbers."""


@triton.constexpr_function
def _place(name):  # type: ignore[no-untyped-def]
    """The place of a field in the record."""
    fields = tuple(_FIELDS)
    return fields.index(name)


@triton.jit
def _number(record_ptr, NAME: tl.constexpr):  # type: ignore[no-untyped-def]
    """A size in the record."""
    return tl.load(record_ptr + _place(NAME))


@triton.jit
def _array(record_ptr, NAME: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """An array whose address is in the record."""
    return tl.load(record_ptr + _place(NAME)).to(tl.pointer_type(TYPE))


@triton.jit
def uses_any(record_ptr, slot):  # type: ignore[no-untyped-def]
    """Whether a slot uses an adjustment."""
    return tl.load(_array(record_ptr, "uses", tl.int8) + slot) != 0


@triton.jit
def edited(plane_ptr, token, inside, x):  # type: ignore[no-untyped-def]
    """Logits ``x`` (float32) of tokens, with the edits of the plane."""
    edit = tl.load(plane_ptr + token, mask=inside, other=0)
    return tl.where(edit == 0, x, (~edit).to(tl.float32, bitcast=True))


@triton.jit
def _write(plane_ptr, token, which, value, CLEAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Put logits on the plane, or with ``CLEAR`` zeros."""
    if CLEAR:
        tl.store(plane_ptr + token, tl.zeros_like(token).to(tl.int32), mask=which)
    else:
        tl.store(plane_ptr + token, ~value.to(tl.int32, bitcast=True), mask=which)


@triton.jit
def _penalised(value, times, repetition, frequency, presence):  # type: ignore[no-untyped-def]
    """Logits of tokens that occurred: ``times`` is 1, and twice the number of times in the output."""
    number = times >> 1
    if repetition != 1.0:
        lowered = tl.where(value > 0.0, tl.div_rn(value, tl.zeros_like(value) + repetition), value * repetition)
        value = tl.where(times > 0, lowered, value)
    # The product is exact in float64 and rounded once, so no compiler joins it with the difference.
    taken = (frequency.to(tl.float64) * number.to(tl.float64)).to(tl.float32)
    return tl.where(number > 0, value - taken - presence, value)


@triton.jit
def _count(plane_ptr, tokens_ptr, first, prompt, known, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count the tokens at places ``first`` to ``known`` on the plane."""
    lane = tl.arange(0, TILE)
    for start in range(first, known, TILE):
        place = start + lane
        token = tl.load(tokens_ptr + place, mask=place < known, other=0)
        output = (place >= prompt) & (place < known)
        tl.atomic_add(plane_ptr + token, tl.full((TILE,), 2, tl.int32), mask=output, sem="relaxed")
        tl.atomic_or(plane_ptr + token, tl.full((TILE,), 1, tl.int32), mask=place < known, sem="relaxed")


@triton.jit
def _ban_list(plane_ptr, ids_ptr, width, vocab, CLEAR: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ban the ids of a list that are in the vocabulary."""
    lane = tl.arange(0, TILE)
    for start in range(0, width, TILE):
        token = tl.load(ids_ptr + start + lane, mask=start + lane < width, other=-1)
        banned = tl.full((TILE,), -float("inf"), tl.float32)
        _write(plane_ptr, token, (token >= 0) & (token < vocab), banned, CLEAR)


@triton.jit
def _ban_words(  # type: ignore[no-untyped-def]
    plane_ptr, tokens_ptr, words_ptr, count, width, prompt, known, position, vocab, CLEAR: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Ban the last token of each word whose other tokens are the last ones of the output."""
    lane = tl.arange(0, TILE)
    for start in range(0, count, TILE):
        word_ptr = words_ptr + (start + lane) * width
        inside = start + lane < count
        token = tl.load(word_ptr + width - 1, mask=inside, other=-1)
        follows = (token >= 0) & (token < vocab)
        if not CLEAR:
            for i in range(width - 1):
                place = position - (width - 1) + i
                there = tl.load(tokens_ptr + place, mask=(place >= prompt) & (place < known), other=-1)
                wanted = tl.load(word_ptr + i, mask=inside, other=-1)
                follows = follows & ((wanted < 0) | (wanted == there))
        banned = tl.full((TILE,), -float("inf"), tl.float32)
        _write(plane_ptr, token, follows, banned, CLEAR)


@triton.jit
def _bias(  # type: ignore[no-untyped-def]
    plane_ptr, logits_ptr, ids_ptr, values_ptr, width, vocab, repetition, frequency, presence, CLEAR: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Bias and penalise the tokens of a list."""
    lane = tl.arange(0, TILE)
    for start in range(0, width, TILE):
        token = tl.load(ids_ptr + start + lane, mask=start + lane < width, other=-1)
        inside = (token >= 0) & (token < vocab)
        value = tl.load(logits_ptr + token, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(values_ptr + start + lane, mask=inside, other=0.0)
        times = tl.load(plane_ptr + token, mask=inside, other=0)
        _write(plane_ptr, token, inside, _penalised(value, times, repetition, frequency, presence), CLEAR)


@triton.jit
def _penalise(  # type: ignore[no-untyped-def]
    plane_ptr, logits_ptr, tokens_ptr, first, known, repetition, frequency, presence, CLEAR: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Penalise the tokens at places ``first`` to ``known`` that no list names.

    A token may occur several times: whoever comes second finds its logit, or writes the same one again.
    """
    lane = tl.arange(0, TILE)
    for start in range(first, known, TILE):
        inside = start + lane < known
        token = tl.load(tokens_ptr + start + lane, mask=inside, other=0)
        times = tl.load(plane_ptr + token, mask=inside, other=0)
        value = tl.load(logits_ptr + token, mask=inside, other=0.0).to(tl.float32)
        which = inside if CLEAR else inside & (times > 0) & (times < _COUNTS)
        _write(plane_ptr, token, which, _penalised(value, times, repetition, frequency, presence), CLEAR)


@triton.jit
def edit_row(  # type: ignore[no-untyped-def]
    record_ptr, plane_ptr, logits_ptr, slot, position, vocab, CLEAR: tl.constexpr, TILE: tl.constexpr
):
    """Write the edits of a row's adjustments to a plane of zeros, or take them back.

    Args:
        record_ptr: int64, the record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS`.
        plane_ptr: int32 ``[V]``.
        logits_ptr: any floating-point type ``[V]``, of the row.
        slot: its engine slot.
        position: of the token that it chooses.
        vocab: V.
        CLEAR: take the edits back.
        TILE: tokens that are looked at at once.
    """
    tokens_ptr = _array(record_ptr, "tokens", tl.int64) + slot * _number(record_ptr, "positions")
    prompt = tl.load(_array(record_ptr, "prompt", tl.int64) + slot)
    known = tl.minimum(position, tl.load(_array(record_ptr, "known", tl.int64) + slot))
    repetition = tl.load(_array(record_ptr, "repetition", tl.float32) + slot)
    frequency = tl.load(_array(record_ptr, "frequency", tl.float32) + slot)
    presence = tl.load(_array(record_ptr, "presence", tl.float32) + slot)
    first = tl.where((frequency != 0.0) | (presence != 0.0), prompt, known)
    first = tl.where(repetition != 1.0, 0, first)
    if not CLEAR:
        _count(plane_ptr, tokens_ptr, first, prompt, known, TILE)
        tl.debug_barrier()
    width = _number(record_ptr, "bias_width")
    ids_ptr, values_ptr = _array(record_ptr, "bias_ids", tl.int64), _array(record_ptr, "bias_values", tl.float32)
    _bias(
        plane_ptr, logits_ptr, ids_ptr + slot * width, values_ptr + slot * width, width, vocab, repetition, frequency,
        presence, CLEAR, TILE,
    )  # fmt: skip
    tl.debug_barrier()
    count, width = _number(record_ptr, "words_count"), _number(record_ptr, "words_width")
    words_ptr = _array(record_ptr, "words", tl.int64) + slot * count * width
    _ban_words(plane_ptr, tokens_ptr, words_ptr, count, width, prompt, known, position, vocab, CLEAR, TILE)
    width = _number(record_ptr, "banned_width")
    _ban_list(plane_ptr, _array(record_ptr, "banned", tl.int64) + slot * width, width, vocab, CLEAR, TILE)
    width = _number(record_ptr, "stop_width")
    early = position - prompt < tl.load(_array(record_ptr, "min_tokens", tl.int64) + slot)
    if CLEAR or early:
        _ban_list(plane_ptr, _array(record_ptr, "stop_ids", tl.int64) + slot * width, width, vocab, CLEAR, TILE)
    tl.debug_barrier()
    _penalise(plane_ptr, logits_ptr, tokens_ptr, first, known, repetition, frequency, presence, CLEAR, TILE)
    tl.debug_barrier()
