"""Drafts from token history: the last proposals tested by what was committed, and new ones. In one pass per sequence.

Matches are found in :mod:`wedlm_core.kernels.cpu.token_logs`; what follows them is weighed by
:mod:`wedlm_core.kernels.cpu.votes`. The readable twin is ``testing/engine/history_oracle.py``; the two give the same
drafts and probabilities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.token_logs import Logs, find, hash_tail, read_tail, write
from wedlm_core.kernels.cpu.votes import (
    SOURCES,
    Learned,
    cell_of,
    hazard_of,
    hazard_of_slot,
    keep_agreeing,
    learn,
    vote,
)

__all__ = ["Memory", "Offer", "Search", "append", "follow", "propose"]

Array = np.ndarray[Any, np.dtype[Any]]

_OWN, _RESUMED, _OWN_BEHIND, _OWN_FIRST = 0, 2, 3, 5  # of the sources


class Offer(NamedTuple):
    """The last proposal for each slot, until tokens are appended: B drafts from elsewhere, then D from here.

    ``token`` int32 ``[slots, B + D]``, ``ahead, drafts`` int64 ``[slots]``, ``cell`` int64 and ``hazard`` float64
    ``[slots, D]``. ``draft_log`` and ``draft_place`` int64 ``[slots, D]``: the log that a draft is from, and where it
    stands there. ``place`` and ``log`` int64 ``[slots]``: where the next token stands in the log that was followed, if
    the text goes on as there; a negative ``log`` where none was. ``begins`` bool ``[slots]``: there is no output yet.
    """

    token: Array
    ahead: Array
    drafts: Array
    cell: Array
    hazard: Array
    draft_log: Array
    draft_place: Array
    place: Array
    log: Array
    begins: Array


class Search(NamedTuple):
    """Limits of a proposal, as in :class:`wedlm_core.engine.drafting.constants.DraftingConstants`."""

    walk: int
    longest: int
    least_acceptance: float
    least_probability: float
    searches: int


class Memory(NamedTuple):
    """All of a history.

    ``opened`` bool and ``grows_at`` int64 ``[slots]``: slots with a text, and tokens at which its log needs a larger
    region.
    """

    logs: Logs
    learned: Learned
    offer: Offer
    opened: Array
    grows_at: Array
    search: Search


@kernel
def _test(slot, token, row, count, offer, learned):  # type: ignore[no-untyped-def]
    """Test the last proposal for a slot by the tokens that were committed, whether or not they were drafts."""
    ahead, drafts = offer.ahead[slot], offer.drafts[slot]
    if drafts > 0:  # the text goes on where the draft in place of the last of these tokens is from
        last = min(max(count - 1 - ahead, 0), drafts - 1)
        offer.log[slot], offer.place[slot] = offer.draft_log[slot, last], offer.draft_place[slot, last] - ahead - last
    for j in range(min(ahead + drafts, count)):
        right = offer.token[slot, j] == token[row, j]
        if j >= ahead:
            learn(learned, slot, offer.cell[slot, j - ahead], offer.hazard[slot, j - ahead], right)
        if not right:
            break
    offer.ahead[slot] = offer.drafts[slot] = 0


@kernel
def append(logs, slots, token, counts, offer, learned):  # type: ignore[no-untyped-def]
    """Write the first ``counts[i]`` tokens of row i behind the text of slot ``slots[i]``; learn from them before.

    Args:
        logs: :class:`Logs`.
        slots: int64 ``[S]``.
        token: integers ``[S, C]``.
        counts: int64 ``[S]``.
        offer: :class:`Offer`; the slots' proposals are consumed.
        learned: :class:`Learned`.
    """
    for i in range(len(slots)):
        if counts[i] > 0:
            _test(slots[i], token, i, counts[i], offer, learned)
            offer.place[slots[i]] += counts[i]
            offer.begins[slots[i]] = False
        for j in range(counts[i]):
            write(logs, slots[i], token[i, j])


@kernel
def _resumes(logs, offer, slot, first):  # type: ignore[no-untyped-def]
    """Whether the log that was followed last has a token where the next one stands."""
    log, place = offer.log[slot], offer.place[slot] + first
    return log >= 0 and max(logs.end[log] - (1 << logs.bits[log]), 0) <= place < logs.end[log]


@kernel
def _best_source(logs, slot, ahead, turn, tail, depth, hashes, learned, offer, found, follows):  # type: ignore[no-untyped-def]
    """The source whose first draft is most probable, of equals the first.

    Args:
        logs: :class:`Logs`.
        slot: of the sequence.
        ahead: drafts that stand behind its text.
        turn: how often sources were looked for before; behind the first time they are those behind drafts.
        tail: tokens of text and drafts, latest first.
        depth: how many there are.
        hashes: of its n-grams.
        learned: :class:`Learned`.
        offer: :class:`Offer`.
        found: int64 ``[SOURCES, walk]``, written: places of each source.
        follows: likewise, what follows them.

    Returns:
        Source (-1 for none), log, how many places of it were found, length of the match; the first draft, its votes,
        and all votes.
    """
    best, chosen, shared = -1.0, (-1, 0, 0, 0, -1, 0, 0), len(logs.end) - 1
    sources = range(_OWN, _OWN_BEHIND)
    if turn > 0:
        sources = range(_OWN_BEHIND, _OWN_FIRST)
    elif offer.begins[slot]:
        sources = range(_OWN_FIRST, SOURCES)
    for source in sources:
        log = slot if source in (_OWN, _OWN_BEHIND, _OWN_FIRST) else shared
        if source != _RESUMED:
            places, matched = find(logs, log, tail, depth, hashes, found.shape[1], found[source])
        elif _resumes(logs, offer, slot, ahead):
            log, places, matched = offer.log[slot], 1, 1
            found[source, 0] = offer.place[slot] + ahead
        else:
            continue
        token, votes, voters = vote(
            logs, log, found[source], places, 0, log == slot, offer.token[slot], follows[source]
        )
        if voters == 0:
            continue
        hazard = hazard_of(learned, cell_of(source, matched, votes, voters), matched, votes, voters)
        if hazard > best:
            best, chosen = hazard, (source, log, places, matched, token, votes, voters)
    return chosen


@kernel
def _follow(logs, slot, first, begin, sure, chosen, places, follows, most, search, learned, offer, token, acceptance):  # type: ignore[no-untyped-def]
    """Propose what follows the places of a source, up to where it ends or is in doubt.

    Args:
        logs: :class:`Logs`.
        slot: of the sequence.
        first: drafts from elsewhere that stand before those proposed here.
        begin: drafts proposed so far.
        sure: probability that these are right.
        chosen: of :func:`_best_source`.
        places: of the source, of which those are kept that go on alike.
        follows: what follows each.
        most: drafts in all.
        search: :class:`Search`.
        learned: :class:`Learned`.
        offer: :class:`Offer`, written for this slot.
        token: int32 ``[D]``, written.
        acceptance: float32 ``[D]``, written.

    Returns:
        Drafts proposed so far, and the probability that they are right.
    """
    source, log, number, length, draft, votes, voters = chosen
    j = begin
    while voters > 0:
        matched = length + j - begin
        cell = cell_of(source, matched, votes, voters)
        hazard = hazard_of(learned, cell, matched, votes, voters)
        right = sure * hazard_of_slot(learned, slot, hazard)
        if right < search.least_acceptance or (j > begin and hazard < search.least_probability):
            break
        sure = right
        offer.token[slot, first + j] = token[j] = draft
        acceptance[j] = sure
        offer.cell[slot, j], offer.hazard[slot, j] = cell, hazard
        if votes < number:
            number = keep_agreeing(places, number, follows, draft)
        offer.draft_log[slot, j], offer.draft_place[slot, j] = log, places[0] + j - begin
        j += 1
        if j == most:
            break
        draft, votes, voters = vote(logs, log, places, number, j - begin, log == slot, offer.token[slot], follows)
    return j, sure


@kernel
def propose(logs, slots, budget, given, ahead, search, learned, offer, token, acceptance, counts, match):  # type: ignore[no-untyped-def]
    """Propose drafts for sequences, behind drafts that they have from elsewhere.

    Where the source that is followed ends, or its next draft is in doubt, sources are looked for again behind the
    drafts so far: a text may know a name, and finished rows what comes after names.

    Args:
        logs: :class:`Logs`.
        slots: int64 ``[S]``.
        budget: int64 ``[S]``, drafts of each at most.
        given: integers ``[S, B]``, drafts that stand before those proposed here.
        ahead: int64 ``[S]``, how many there are.
        search: :class:`Search`.
        learned: :class:`Learned`.
        offer: :class:`Offer`, written for these slots.
        token: int32 ``[S, D]``, written.
        acceptance: float32 ``[S, D]``, written: the probability that a draft and all drafts from here before it are
            right, given that those ahead are.
        counts: int64 ``[S]``, written: drafts proposed.
        match: int64 ``[S]``, written: length of the first match, negative in the shared log, 0 for none.
    """
    tail, hashes = np.empty(search.longest, np.int64), np.empty(len(logs.order), np.uint64)
    found, follows = np.empty((SOURCES, search.walk), np.int64), np.empty((SOURCES, search.walk), np.int64)
    for i in range(len(slots)):
        slot, first = slots[i], ahead[i]
        counts[i] = match[i] = 0
        offer.ahead[slot], offer.drafts[slot] = first, 0
        for j in range(first):
            offer.token[slot, j] = given[i, j]
        most, drafts, sure = min(budget[i], token.shape[1]), 0, 1.0
        for turn in range(search.searches):
            if drafts >= most or sure < search.least_acceptance:
                break
            depth = read_tail(logs, slot, offer.token[slot], first + drafts, tail)
            hash_tail(tail, depth, logs.order, hashes)
            chosen = _best_source(logs, slot, first + drafts, turn, tail, depth, hashes, learned, offer, found, follows)
            source, log, _, length, _, _, _ = chosen
            if source < 0:
                break
            if turn == 0:
                match[i] = length if log == slot else -length
                offer.log[slot], offer.place[slot] = log, found[source, 0] - first
            begin = drafts
            drafts, sure = _follow(
                logs, slot, first, begin, sure, chosen, found[source], follows[source], most, search, learned, offer,
                token[i], acceptance[i],
            )  # fmt: skip
            if drafts == begin:
                break
        counts[i] = offer.drafts[slot] = drafts


@kernel
def follow(memory, columns, slots, lives, committed, emit, token, acceptance):  # type: ignore[no-untyped-def]
    """Take in what D sequences emitted, and propose what follows to those that go on.

    Args:
        memory: :class:`Memory`.
        columns: :class:`wedlm_core.kernels.cpu.draft_windows.Columns`.
        slots: int64 ``[D]``; those that are not open are passed over.
        lives: bool ``[D]``, which of them go on.
        committed: integers ``[D, C]``, tokens of the forward.
        emit: int64 ``[D]``, how many of each are output.
        token: int32 ``[D, P]``, written: drafts.
        acceptance: float32 ``[D, P]``, written: probability that a draft and all before it are accepted, 0 for none.

    Returns:
        The place of a sequence whose log has to grow first, -1 for none: until then nothing is done.
    """
    logs = memory.logs
    own, budget = np.zeros(len(slots), np.int64), np.zeros(len(slots), np.int64)
    for d in range(len(slots)):
        slot = slots[d]
        if not memory.opened[slot]:
            continue
        if logs.end[slot] + emit[d] > memory.grows_at[slot]:
            return d
        own[d] = emit[d]
        if lives[d]:
            budget[d] = min(2 * columns.widest[slot], columns.limit[slot] - columns.generated[slot])
    append(logs, slots, committed, own, memory.offer, memory.learned)
    count, match = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    propose(
        logs, slots, budget, np.empty((0, 0), np.int64), np.zeros(len(slots), np.int64), memory.search, memory.learned,
        memory.offer, token, acceptance, count, match,
    )  # fmt: skip
    for d in range(len(slots)):
        acceptance[d, count[d] :] = 0.0
    return -1
