"""Walks of sequences through grammars that are automata: commits are taken in and the next windows are drafted.

One pass per sequence over tables, in place of questions to a matcher. :mod:`wedlm_core.engine.known_states` fills the
tables; :class:`wedlm_core.grammar.constraint.Constraint` is the oracle of what is drafted.

A sequence stands behind a token, in a state of its automaton. In the middle of a forced text one token may follow; else
a line of bits says which ones may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.views import array_at, numbers_at
from wedlm_core.statistics import DraftSource

__all__ = [
    "CHANGED", "DONE", "ENDS_EARLY", "GOES_ON", "KEPT", "LEAD", "MASKS", "NO_LINE", "NO_TEXT", "OUTCOME", "PAYING",
    "PLACE", "PLACES", "REFUSED", "SLOT", "TABLES", "Drafted", "Proposed", "allowed_bits", "draft_windows", "follows",
    "forced_text", "insert_text",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]

DONE, REFUSED, ENDS_EARLY, NO_TEXT, NO_LINE = range(5)
"""How a walk ended: well; at a committed token that the grammar refuses; at an end of sequence where no output may end;
at a state of which it is not known yet whether a text is forced, or which tokens are allowed."""

_COUNTS = ("grammars", "states", "transitions", "lines", "words", "keys", "texts", "text_tokens", "tokens", "bytes")
_OF_GRAMMARS = ("class_GB", "width_G", "first_G", "at_G")
_OF_STATES = ("next", "accepts", "ends", "forces", "line", "bits")
_OF_TOKENS = ("key", "text", "text_at", "text_token", "byte_at", "byte", "is_eos")
TABLES = np.dtype([(name, np.int64) for name in (*_COUNTS, "end_line", *_OF_GRAMMARS, *_OF_STATES, *_OF_TOKENS)])
"""What is known of the automata of G grammars, whose states are numbered on: sizes, and addresses of arrays.

- ``class_GB``: uint8 ``[G, 256]``, the class of a byte. ``width_G``: classes. ``first_G``: number of the first state.
  ``at_G``: where the transitions of that state stand in ``next``, int32: a state counted from the first, or -1.
- ``accepts, ends, forces``: bool by state: an output may end here; it must; exactly one byte may follow.
- ``line``: int64, the state's line of ``bits`` (int32 ``[lines, words]``); -1 if that is not known yet. ``end_line``:
  that of a state that must end.
- ``key, text``: int64 ``[keys]``, forced texts by state and last token: a hash table, whose free places have key -1.
- ``text_at, text_token``: int64, where a text begins among the tokens of all; it ends where the next begins. Text 0 is
  empty.
- ``byte_at, byte``: int64 ``[tokens + 1]`` and uint8, the bytes of tokens; none of tokens that no text spells.
- ``is_eos``: bool ``[tokens]``.
"""

_OF_SLOTS = ("grammar", "state", "last", "text", "done", "lead", "token", "line")
PLACES = np.dtype([(name, np.int64) for name in ("slots", "places", *_OF_SLOTS)])
"""Where sequences stand: sizes, and addresses of int64 arrays by slot.

- ``grammar``: number. ``state``: counted from its first. ``last``: token, -1 at the beginning. ``text, done``: the
  forced text, and how many of its tokens are taken in.
- ``lead, token``: drafts of the next forward, ``[slots]`` and ``[slots, places]``.
- ``line``: ``[slots, places + 1]``, before the first draft and behind each, what may be chosen: a line of bits, or
  -2 - t where only token t may.
"""

SLOT, _EMITTED, _COMMITTED, _ROWS, KEPT, _MOST, _PLANNED, PAYING, GOES_ON, PLACE = range(10)
LEAD, MASKS, OUTCOME, CHANGED, _MISSING = range(5)
_MASK, _GRAMMAR, _HISTORY = int(DraftSource.MASK), int(DraftSource.GRAMMAR), int(DraftSource.HISTORY)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Proposed(NamedTuple):
    """What G sequences commit, and what is proposed to them.

    Attributes:
        numbers_10G: int64: slots; tokens that are output, and all that were committed; rows of the forward; proposals
            of masks that may become drafts; drafts and masks at most; masks that are planned; drafts that history
            proposes in the place of masks, 0 where it does not; whether the sequence goes on; its place in the forward.
        token_DC: int64, what the forward's rows chose.
        theirs_DP: int32, what history proposes to the sequences of the forward.
    """

    numbers_10G: Array
    token_DC: Array
    theirs_DP: Array

    @classmethod
    def first(cls, slots: Sequence[int], most: Sequence[int], masks: Sequence[int]) -> Proposed:
        """Of new sequences: nothing is committed, nothing proposed."""
        count = len(slots)
        lines: list[Sequence[int]] = [[0] * count] * 10
        lines[SLOT], lines[_MOST], lines[_PLANNED] = slots, most, masks
        lines[_ROWS] = lines[GOES_ON] = [1] * count
        lines[PLACE] = range(count)
        nothing = np.zeros((count, 1), dtype=np.int64)
        return cls(np.array(lines, dtype=np.int64), nothing, nothing.astype(np.int32))

    @property
    def slots(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[SLOT]

    @property
    def emitted(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[_EMITTED]

    @property
    def kept(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[KEPT]

    @property
    def places(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_10G[PLACE]

    @property
    def goes_on(self) -> Array:
        """Bool ``[G]``."""
        return self.numbers_10G[GOES_ON] != 0


class Drafted(NamedTuple):
    """The next windows of G sequences.

    Attributes:
        numbers_8G: int64: drafts and masks; :data:`DONE` or why not; whether the window changes
            (:func:`wedlm_core.kernels.cpu.grammar_windows.note_windows`); the state and the last token where a walk
            ended that lacks knowledge, how many of the emitted tokens it took in, and how many drafts.
        token_GL: int64, drafts.
        source_GL: int8, of each.
    """

    numbers_8G: Array
    token_GL: Array
    source_GL: Array

    @classmethod
    def empty(cls, sequences: int, places: int) -> Drafted:
        """No drafts yet."""
        shape = sequences, places
        return cls(np.zeros((8, sequences), np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int8))

    @property
    def lead(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_8G[LEAD]

    @property
    def masks(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_8G[MASKS]

    @property
    def outcome(self) -> Array:
        """int64 ``[G]``."""
        return self.numbers_8G[OUTCOME]

    @property
    def changed(self) -> Array:
        """Bool ``[G]``."""
        return self.numbers_8G[CHANGED] != 0

    def missing(self, g: int) -> list[int]:
        """State, last token, emitted tokens that were taken in, drafts."""
        return [int(number) for number in self.numbers_8G[_MISSING:, g]]


@kernel
def _place_of(tables, state, token):  # type: ignore[no-untyped-def]
    """Where a key stands or would stand in the hash table, and the key."""
    keys = numbers_at(tables.key, tables.keys)
    key = state * (tables.tokens + 1) + token + 1
    last = np.uint64(tables.keys - 1)
    place = (np.uint64(key) * _SPREAD >> np.uint64(20)) & last
    while keys[place] != key and keys[place] != -1:
        place = (place + np.uint64(1)) & last
    return place, key


@kernel
def insert_text(records, state, token, text):  # type: ignore[no-untyped-def]
    """Note which text is forced in a state (numbered over all automata) behind a token; there has to be room.

    Args:
        records: one record :data:`TABLES`.
        state: number.
        token: the last one, -1 at the beginning.
        text: number.
    """
    tables = records[0]
    place, key = _place_of(tables, state, token)
    numbers_at(tables.key, tables.keys)[place] = key
    numbers_at(tables.text, tables.keys)[place] = text


@kernel
def _text_behind(tables, state, token):  # type: ignore[no-untyped-def]
    if array_at(tables.forces, (tables.states,), np.uint8)[state] == 0:
        return 0
    place, key = _place_of(tables, state, token)
    return numbers_at(tables.text, tables.keys)[place] if numbers_at(tables.key, tables.keys)[place] == key else -1


@kernel
def forced_text(records, state, token):  # type: ignore[no-untyped-def]
    """The text that is forced in a state behind a token, as for :func:`insert_text`; -1 if that is not known."""
    return _text_behind(records[0], state, token)


@kernel
def _follow(tables, grammar, state, token):  # type: ignore[no-untyped-def]
    """The state behind the bytes of a token, both counted from the grammar's first; -1 if there is none."""
    byte_at = numbers_at(tables.byte_at, tables.tokens + 1)
    begin, end = byte_at[token], byte_at[token + 1]
    if begin == end:
        return -1
    at, width = numbers_at(tables.at_G, tables.grammars)[grammar], numbers_at(tables.width_G, tables.grammars)[grammar]
    classes = array_at(tables.class_GB, (tables.grammars, 256), np.uint8)
    following = array_at(tables.next, (tables.transitions,), np.int32)
    text = array_at(tables.byte, (tables.bytes,), np.uint8)
    for i in range(begin, end):
        state = np.int64(following[at + state * width + classes[grammar, text[i]]])
        if state < 0:
            return -1
    return state


@kernel
def follows(records, grammar, state, tokens):  # type: ignore[no-untyped-def]
    """Whether the bytes of tokens can follow a state, counted from the grammar's first; ``records`` as elsewhere."""
    for token in tokens:
        state = _follow(records[0], grammar, state, token)
        if state < 0:
            return False
    return True


@kernel
def _has_bit(tables, line, token):  # type: ignore[no-untyped-def]
    bits = array_at(tables.bits, (tables.lines, tables.words), np.int32)
    return (bits[line, token // 32] >> np.int32(token % 32)) & 1 != 0


@kernel
def allowed_bits(records, grammar, state, bits):  # type: ignore[no-untyped-def]
    """Set the bits of the tokens whose bytes may follow a state.

    Args:
        records: one record :data:`TABLES`.
        grammar: number.
        state: counted from its first.
        bits: int32 ``[words]``, overwritten.
    """
    tables = records[0]
    bits[:] = 0
    for token in range(tables.tokens):
        if _follow(tables, grammar, state, token) >= 0:
            bits[token // 32] |= np.int32(1) << np.int32(token % 32)


@kernel
def _is_inside(tables, text, done):  # type: ignore[no-untyped-def]
    """Whether a forced text goes on behind so many of its tokens."""
    text_at = numbers_at(tables.text_at, tables.texts + 1)
    return text_at[text] + done < text_at[text + 1]


@kernel
def _forced_token(tables, text, done):  # type: ignore[no-untyped-def]
    at = numbers_at(tables.text_at, tables.texts + 1)[text] + done
    return numbers_at(tables.text_token, tables.text_tokens)[at]


@kernel
def _move(tables, grammar, state, token, text, done):  # type: ignore[no-untyped-def]
    """The state behind a token, the forced text that goes on or begins there, and how much of it is taken in.

    The state is -1 where the token cannot come, the text where it is not known.
    """
    state, done = _follow(tables, grammar, state, token), done + 1
    if state >= 0 and not _is_inside(tables, text, done):
        text, done = _text_behind(tables, numbers_at(tables.first_G, tables.grammars)[grammar] + state, token), 0
    return state, text, done


@kernel
def _take_in(tables, grammar, tokens, count, state, last, text, done):  # type: ignore[no-untyped-def]
    """Walk along tokens that are output: how that ended, how many were taken in, and where it leads."""
    first = numbers_at(tables.first_G, tables.grammars)[grammar]
    is_eos = array_at(tables.is_eos, (tables.tokens,), np.uint8)
    accepts = array_at(tables.accepts, (tables.states,), np.uint8)
    ends, line = array_at(tables.ends, (tables.states,), np.uint8), numbers_at(tables.line, tables.states)
    for i in range(count):
        token, number = tokens[i], first + state
        inside = _is_inside(tables, text, done)
        if is_eos[token]:
            return DONE if not inside and accepts[number] else ENDS_EARLY, i, state, last, text, done
        if inside:
            if token != _forced_token(tables, text, done):
                return REFUSED, i, state, last, text, done
        elif ends[number]:
            return REFUSED, i, state, last, text, done
        elif line[number] < 0:
            return NO_LINE, i, state, last, text, done
        elif not _has_bit(tables, line[number], token):
            return REFUSED, i, state, last, text, done
        state, text, done = _move(tables, grammar, state, token, text, done)
        last = token
        if state < 0:
            return REFUSED, i, state, last, text, done
        if text < 0:
            return NO_TEXT, i + 1, state, last, text, done
    return DONE, count, state, last, text, done


@kernel
def _draft(tables, places, wanted, chosen, theirs, drafts, sources, state, last, text, done):  # type: ignore[no-untyped-def]
    """Draft a window from where a sequence stands: how that ended, the drafts, whether an end follows, and where.

    Args:
        tables: a record :data:`TABLES`.
        places: a record :data:`PLACES`.
        wanted: the numbers of the sequence (:class:`Proposed`).
        chosen: its tokens that the forward's rows chose.
        theirs: tokens that history proposes.
        drafts: written.
        sources: written.
        state: counted from the grammar's first.
        last: token.
        text: forced text that goes on.
        done: how much of that is taken in.
    """
    slot, most = wanted[SLOT], wanted[_MOST]
    grammar = numbers_at(places.grammar, places.slots)[slot]
    first = numbers_at(tables.first_G, tables.grammars)[grammar]
    line = numbers_at(places.line + 8 * slot * (places.places + 1), places.places + 1)
    before = numbers_at(places.token + 8 * slot * places.places, places.places)
    lead = numbers_at(places.lead, places.slots)[slot]
    is_eos = array_at(tables.is_eos, (tables.tokens,), np.uint8)
    accepts = array_at(tables.accepts, (tables.states,), np.uint8)
    ends, lines = array_at(tables.ends, (tables.states,), np.uint8), numbers_at(tables.line, tables.states)
    offered, committed = wanted[_ROWS] - 1 - wanted[_COMMITTED], wanted[_COMMITTED]
    left, source, count = min(wanted[KEPT], offered), _MASK, 0
    if wanted[PAYING] > 0:
        offered, left, source = wanted[PAYING], wanted[PAYING], _HISTORY
    while True:
        number = first + state
        if _is_inside(tables, text, done):
            token = _forced_token(tables, text, done)
            line[count] = -2 - token
            if count == most:
                return DONE, count, False, state, last
            sources[count] = _GRAMMAR
        elif ends[number]:
            line[count] = tables.end_line
            return DONE, count, True, state, last
        else:
            line[count] = lines[number]
            if lines[number] < 0:
                return NO_LINE, count, False, state, last
            if count >= min(most, offered) or left <= 0:
                return DONE, count, False, state, last
            if source == _HISTORY:
                token = theirs[count]
            else:  # the rows behind the drafts' are masks, which proposed for the places behind the drafts
                at = committed + count
                token = before[at] if at < lead else chosen[at + 1]
            if is_eos[token]:
                return DONE, count, accepts[number] != 0, state, last
            if not _has_bit(tables, lines[number], token):
                return DONE, count, False, state, last
            left -= 1
            sources[count] = source
        drafts[count] = token
        count += 1
        state, text, done = _move(tables, grammar, state, token, text, done)
        last = token
        if state < 0:  # what is kept as known fits the automaton, so it cannot be
            return REFUSED, count, False, state, last
        if text < 0:
            return NO_TEXT, count, False, state, last


@kernel
def draft_windows(records, places_1, numbers, chosen, theirs, results, drafts, sources, lines):  # type: ignore[no-untyped-def]
    """Take in what sequences commit, and draft the next windows of those that go on.

    A walk that lacks knowledge changes nothing, and is to be repeated when there is more.

    Args:
        records: one record :data:`TABLES`.
        places_1: one record :data:`PLACES`; its arrays are changed where walks end well.
        numbers: of :class:`Proposed`, as the next two.
        chosen: tokens.
        theirs: tokens.
        results: of :class:`Drafted`, written, as the next two.
        drafts: tokens.
        sources: of drafts.
        lines: int64, which of the G sequences to walk.

    Returns:
        How many walks lack knowledge.
    """
    tables, places, lacking = records[0], places_1[0], 0
    grammars, states = numbers_at(places.grammar, places.slots), numbers_at(places.state, places.slots)
    lasts, texts = numbers_at(places.last, places.slots), numbers_at(places.text, places.slots)
    dones, leads = numbers_at(places.done, places.slots), numbers_at(places.lead, places.slots)
    tokens = array_at(places.token, (places.slots, places.places), np.int64)
    for g in lines:
        slot, tokens_chosen = numbers[SLOT, g], chosen[numbers[PLACE, g]]
        how, taken, state, last, text, done = _take_in(
            tables, grammars[slot], tokens_chosen, numbers[_EMITTED, g], states[slot], lasts[slot], texts[slot],
            dones[slot],
        )  # fmt: skip
        goes_on = numbers[GOES_ON, g] != 0
        count, ends, at, behind = 0, False, state, last
        if how == DONE and goes_on:
            how, count, ends, at, behind = _draft(
                tables, places, numbers[:, g], tokens_chosen, theirs[numbers[PLACE, g]], drafts[g], sources[g], state,
                last, text, done,
            )  # fmt: skip
        results[OUTCOME, g] = how
        if how >= NO_TEXT:
            results[_MISSING, g], results[_MISSING + 1, g] = at, behind
            results[_MISSING + 2, g], results[_MISSING + 3, g] = taken, count
            lacking += 1
        elif how == DONE and goes_on:
            states[slot], lasts[slot], texts[slot], dones[slot] = state, last, text, done
            results[LEAD, g] = leads[slot] = count
            room = min(numbers[_PLANNED, g], numbers[_MOST, g] - count)
            results[MASKS, g] = 0 if ends else max(0, room)
            # Only now: proposals of masks are read among the drafts of the forward that has completed.
            for place in range(count):
                tokens[slot, place] = drafts[g, place]
    return lacking
