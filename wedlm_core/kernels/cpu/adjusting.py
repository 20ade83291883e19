"""Adjustments of one row of logits: only the tokens that they name are touched, and put back afterwards.

Oracle: ``testing.engine.oracle.adjusted``, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at, numbers_at
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.records import adjustments_at
from wedlm_core.kernels.cpu.scalar import F32

_BANNED = F32(-np.inf)


class Edits(NamedTuple):
    """Scratch memory of a row's changes, for a vocabulary of V tokens.

    Attributes:
        times: int32 ``[V]``, zeros between rows: 1 and twice the number of times in the output, of tokens that occur.
        noted: bool ``[V]``, zeros between rows: tokens that are on the list.
        token: int32 ``[2 V]``, the list.
        before: float32 ``[V]``, logits of listed tokens before any change.
    """

    times: Any
    noted: Any
    token: Any
    before: Any


@kernel(inline="always")
def uses_any(address, slot):  # type: ignore[no-untyped-def]
    """Whether a slot uses an adjustment; ``address``: of the record, or 0."""
    if address == 0:
        return False
    tables = adjustments_at(address)
    return array_at(tables.uses, (tables.slots,), np.uint8)[slot] != 0


@kernel(inline="always")
def _float_of(address, slot):  # type: ignore[no-untyped-def]
    return array_at(address, (slot + 1,), np.float32)[slot]


@kernel(inline="always")
def _number_of(address, slot):  # type: ignore[no-untyped-def]
    return numbers_at(address, slot + 1)[slot]


@kernel
def _note(logits, r, token, edits, count):  # type: ignore[no-untyped-def]
    """Put a token on the list before its logit changes; the length of the list."""
    if edits.noted[token]:
        return count
    edits.noted[token] = True
    edits.token[count], edits.before[count] = token, logits[r, token]
    return count + 1


@kernel
def _ban(logits, r, token, edits, count):  # type: ignore[no-untyped-def]
    """Ban a token; an id that is none of the vocabulary's is left out."""
    if token < 0 or token >= logits.shape[1]:
        return count
    count = _note(logits, r, token, edits, count)
    logits[r, token] = _BANNED
    return count


@kernel
def _follows(tokens, prompt, known, position, word):  # type: ignore[no-untyped-def]
    """Whether the output up to ``position`` ends with the tokens of a word but its last; -1 are no tokens."""
    for i in range(len(word) - 1):
        place = position - (len(word) - 1) + i
        if word[i] >= 0 and not (prompt <= place < known and tokens[place] == word[i]):
            return False
    return True


@kernel
def _penalise(logits, r, tokens, first, prompt, known, penalties, edits, count):  # type: ignore[no-untyped-def]
    """Penalise the tokens from place ``first`` on, with the times that the output has each."""
    repetition, frequency, presence = penalties
    listed = count
    for place in range(first, known):
        token = tokens[place]
        if edits.times[token] == 0:
            edits.times[token] = 1
            edits.token[listed] = token  # the list of occurring tokens lies after that of noted ones
            listed += 1
        edits.times[token] += 2 if place >= prompt else 0
    for n in range(count, listed):
        token = edits.token[n]
        number, edits.times[token] = edits.times[token] >> 1, 0
        count = _note(logits, r, token, edits, count)  # at place n at most
        value = logits[r, token]
        if repetition != F32(1.0):
            value = value / repetition if value > F32(0.0) else value * repetition
        if number > 0:
            value = value - frequency * F32(number)
            value = value - presence
        logits[r, token] = value
    return count


@kernel
def adjust_row(logits, r, slot, position, address, edits):  # type: ignore[no-untyped-def]
    """Change the logits of the tokens that a row's adjustments name; the length of the list of them.

    Args:
        logits: float32 ``[R, V]``.
        r: the row.
        slot: its engine slot.
        position: of the token that it chooses.
        address: of the record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS`.
        edits: :class:`Edits`; :func:`restore_row` takes it back.
    """
    tables, count = adjustments_at(address), 0
    tokens = array_at(tables.tokens, (tables.slots, tables.positions), np.int64)[slot]
    prompt = _number_of(tables.prompt, slot)
    known = min(position, _number_of(tables.known, slot))
    words = array_at(tables.words, (tables.slots, tables.words_count, tables.words_width), np.int64)
    for word in words[slot]:
        if word[-1] >= 0 and _follows(tokens, prompt, known, position, word):
            count = _ban(logits, r, word[-1], edits, count)
    banned = array_at(tables.banned, (tables.slots, tables.banned_width), np.int64)
    for token in banned[slot]:
        count = _ban(logits, r, token, edits, count)
    if position - prompt < _number_of(tables.min_tokens, slot):
        stops = array_at(tables.stop_ids, (tables.slots, tables.stop_width), np.int64)
        for token in stops[slot]:
            count = _ban(logits, r, token, edits, count)
    ids = array_at(tables.bias_ids, (tables.slots, tables.bias_width), np.int64)[slot]
    values = array_at(tables.bias_values, (tables.slots, tables.bias_width), np.float32)[slot]
    for i in range(len(ids)):
        if 0 <= ids[i] < logits.shape[1]:
            count = _note(logits, r, ids[i], edits, count)
            logits[r, ids[i]] += values[i]
    repetition = _float_of(tables.repetition, slot)
    frequency, presence = _float_of(tables.frequency, slot), _float_of(tables.presence, slot)
    if repetition != F32(1.0):
        count = _penalise(logits, r, tokens, 0, prompt, known, (repetition, frequency, presence), edits, count)
    elif frequency != F32(0.0) or presence != F32(0.0):
        count = _penalise(logits, r, tokens, prompt, prompt, known, (repetition, frequency, presence), edits, count)
    return count


@kernel
def restore_row(logits, r, edits, count):  # type: ignore[no-untyped-def]
    """Undo the changes of :func:`adjust_row`, from its last change to its first."""
    for n in range(count):
        token = edits.token[n]
        logits[r, token] = edits.before[n]
        edits.noted[token] = False
