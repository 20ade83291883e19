"""Drafts from token history: the last drafts tested against commits, and new ones. In one pass per sequence.

Matches are found in :mod:`wedlm_core.kernels.cpu.token_rings`. The tokens after the longest ones vote on the next
token, and classes of votes learn how often they are right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.token_rings import Rings, find, read_tail, write

Array = np.ndarray[Any, np.dtype[Any]]

_SOURCES, _LENGTHS, _EVIDENCE = 2, 6, 6  # the own text and finished rows; of matches; of votes
CLASSES = _SOURCES * _LENGTHS * _EVIDENCE


class Memory(NamedTuple):
    """All of a history.

    Attributes:
        rings: the texts.
        tests: float64 ``[CLASSES, (tested, right)]``, decayed.
        token: int32 ``[slots, P]``, the last drafts of each slot.
        drafts: int64 ``[slots]``, how many there are, until tokens are appended.
        cell: int64 ``[slots, P]``, their classes.
        class_kept: share of a class's counts kept per test.
        prior: weight of the votes in tests.
    """

    rings: Rings
    tests: Array
    token: Array
    drafts: Array
    cell: Array
    class_kept: float
    prior: float


@kernel
def append(memory, slots, committed, counts):  # type: ignore[no-untyped-def]
    """Write the first ``counts[d]`` tokens of row d after the text of a slot; they test the slot's last drafts.

    Args:
        memory: :class:`Memory`, changed.
        slots: int64 ``[D]``.
        committed: integers ``[D, C]``.
        counts: int64 ``[D]``.
    """
    for d in range(len(slots)):
        slot = slots[d]
        for j in range(min(memory.drafts[slot], counts[d])):  # whether or not they were verified
            right = memory.token[slot, j] == committed[d, j]
            tests = memory.tests[memory.cell[slot, j]]
            tests[0] = tests[0] * memory.class_kept + 1.0
            tests[1] = tests[1] * memory.class_kept + (1.0 if right else 0.0)
            if not right:
                break
        memory.drafts[slot] = 0
        for j in range(counts[d]):
            write(memory.rings, slot, committed[d, j])


@kernel
def propose(memory, slots, most, walk, least, token, acceptance):  # type: ignore[no-untyped-def]
    """Propose drafts for sequences: continuations of the longest suffix of each, from the better source.

    Args:
        memory: :class:`Memory`; the drafts are noted in it.
        slots: int64 ``[D]``.
        most: int64 ``[D]``, drafts of each at most.
        walk: occurrences that vote, and tokens of a match that count.
        least: probability below which no draft is proposed.
        token: int32 ``[D, P]``, written.
        acceptance: float32 ``[D, P]``, written: the probability that a draft and all before it are right; 0 for none.
    """
    rings = memory.rings
    tail, hashes = np.empty(walk, np.int64), np.empty(len(rings.order), np.uint64)
    found, follows = np.empty((_SOURCES, walk), np.int64), np.empty(walk, np.int64)
    for d in range(len(slots)):
        slot = slots[d]
        memory.drafts[slot] = 0
        acceptance[d] = 0.0
        if most[d] <= 0:
            continue
        depth = read_tail(rings, slot, tail, hashes)
        best, chosen, number, length = 0.0, 0, 0, 0
        for source in range(_SOURCES):
            ring = slot if source == 0 else len(rings.end) - 1
            places, matched = find(rings, ring, tail, depth, hashes, found[source])
            _, votes, voters = _vote(memory, slot, ring, found[source], places, 0, follows)
            if voters:
                hazard = _hazard(memory, _cell(source, matched, votes, voters), matched, votes, voters)
                if hazard > best:
                    best, chosen, number, length = hazard, source, places, matched
        if number:
            _follow(
                memory, slot, chosen, found[chosen], number, length, follows, most[d], least, token[d], acceptance[d]
            )


@kernel
def _follow(memory, slot, source, found, number, length, follows, most, least, token, acceptance):  # type: ignore[no-untyped-def]
    """Propose the tokens after the ``number`` places ``found`` of a source, after a match of so many tokens."""
    ring = slot if source == 0 else len(memory.rings.end) - 1
    sure = 1.0
    for j in range(min(most, len(token))):
        draft, votes, voters = _vote(memory, slot, ring, found, number, j, follows)
        if voters == 0:
            return
        cell = _cell(source, length + j, votes, voters)
        sure *= _hazard(memory, cell, length + j, votes, voters)
        if sure < least:
            return
        token[j], acceptance[j] = draft, sure
        memory.token[slot, j], memory.cell[slot, j] = draft, cell
        memory.drafts[slot] = j + 1
        kept = 0
        for a in range(number):
            if follows[a] == draft:
                found[kept] = found[a]
                kept += 1
        number = kept


@kernel
def _vote(memory, slot, ring, found, number, j, follows):  # type: ignore[no-untyped-def]
    """The token that stands ``j`` tokens after some places most often; the latest of them decides between equals.

    Returns:
        Token (-1 for none), its votes, all votes. ``follows`` int64 is written: the token after each of the places,
        negative for nothing.
    """
    rings = memory.rings
    start, size, end = rings.start[ring], 1 << rings.bits[ring], rings.end[ring]
    token, votes, voters = -1, 0, 0
    for a in range(number):
        position = found[a] + j
        if position < end:
            follows[a] = rings.token[start + (position & (size - 1))]
        else:  # after its own text a sequence goes on with its drafts
            follows[a] = memory.token[slot, position - end] if ring == slot else -1
        voters += follows[a] >= 0
    for a in range(number):
        if votes >= number - a:
            break  # no other has as many
        if follows[a] < 0:
            continue
        same = 1
        for b in range(a + 1, number):
            same += follows[b] == follows[a]
        if same > votes:
            token, votes = follows[a], same
    return token, votes, voters


@kernel
def _cell(source, length, votes, voters):  # type: ignore[no-untyped-def]
    """The class of a draft: its source, the length of the match that it follows, its votes and all votes.

    Lengths are 1, 2-3, 4-7, 8-15, 16-31, 32 and more. Votes are all of 1, of 2-3, of 4 and more; at least 3/4, at least
    1/2, fewer.
    """
    long = 0
    while long < _LENGTHS - 1 and length >> (long + 1):
        long += 1
    if votes == voters:
        evidence = 0 if voters == 1 else (1 if voters < 4 else 2)
    elif 4 * votes >= 3 * voters:
        evidence = 3
    else:
        evidence = 4 if 2 * votes >= voters else 5
    return (source * _LENGTHS + long) * _EVIDENCE + evidence


@kernel
def _hazard(memory, cell, length, votes, voters):  # type: ignore[no-untyped-def]
    """Probability that a draft is right after right ones: the experience of its class, with the votes as prior."""
    prior = (votes + 0.5) / (voters + 1.0) * length / (length + 1.0)
    tested, right = memory.tests[cell]
    return (right + memory.prior * prior) / (tested + memory.prior)
