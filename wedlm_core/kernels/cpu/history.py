"""Drafts from token history: logs of tokens indexed by n-gram, suffix matches, votes on what follows. Integers mostly.

Each log is a ring over ``1 << bits`` tokens of one arena. Token p of a log lies at ``start + p % size`` for as long as
it is one of the last ``size``. For each order, ``head`` holds the latest position of each bucket of n-grams (hashed),
and ``before`` the position in the same bucket before it: a chain that ends where positions were overwritten. So nothing
is ever deleted, an index costs a few stores per token, and a match is checked token by token, whatever hashes do.

The readable twin is ``testing/engine/history_oracle.py``; the two give the same drafts and probabilities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = [
    "EVIDENCE",
    "LENGTHS",
    "ROW_END",
    "SOURCES",
    "Learned",
    "Logs",
    "Memory",
    "Offer",
    "Search",
    "append",
    "copy_row",
    "extend",
    "propose",
]

Array = np.ndarray[Any, np.dtype[Any]]

ROW_END = -1
"""Stands behind each row in the shared log: no match reaches over it."""
SOURCES = 5
"""The own text; the shared log; either, where the last match went on, although what followed it was another token;
behind drafts from here the own text, and the shared log."""
_OWN, _RESUMED, _OWN_BEHIND = 0, 2, 3
LENGTHS = 10
"""Classes of match lengths, :func:`_length_class`."""
EVIDENCE = 6
"""Classes of votes, :func:`_evidence_class`."""

_SALT = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_ONE, _HALF, _WORD = np.uint64(1), np.uint64(32), np.uint64(64)


class Logs(NamedTuple):
    """Rings of tokens in one arena of N tokens; log ``s`` is the text of slot s, the last one is shared.

    ``start, bits, end`` int64 ``[logs]``: first place, log2 of the size, tokens ever written. ``token`` int32 ``[N]``.
    ``before, head`` int32 ``[orders, N]``. ``order`` int64, ascending.
    """

    start: Array
    bits: Array
    end: Array
    token: Array
    before: Array
    head: Array
    order: Array


class Learned(NamedTuple):
    """What committed tokens said of drafts.

    ``tests`` float64 ``[SOURCES, LENGTHS, EVIDENCE, (tested, right)]``; ``fail``
    float64 ``[slots, (failed, expected)]``. ``cell_kept, slot_kept`` are shares that one test leaves of older ones,
    ``cell_prior, slot_prior`` weights of the prior, in tests and in failures.
    """

    tests: Array
    fail: Array
    cell_kept: float
    slot_kept: float
    cell_prior: float
    slot_prior: float


class Offer(NamedTuple):
    """The last proposal for each slot, until tokens are appended: B drafts from elsewhere, then D from here.

    ``token`` int32 ``[slots, B + D]``, ``ahead, drafts`` int64 ``[slots]``, ``cell`` int64 and ``hazard`` float64
    ``[slots, D]``. ``draft_log`` and ``draft_place`` int64 ``[slots, D]``: the log that a draft is from, and where it
    stands there. ``place`` and ``log`` int64 ``[slots]``: where the next token stands in the log that was followed, if
    the text goes on as there; a negative ``log`` where none was.
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


class Search(NamedTuple):
    """Limits of a proposal.

    ``walk``: occurrences looked at per order. ``longest``: tokens of a match that count. ``least``: acceptance below
    which nothing is proposed. ``doubt``: probability of a draft below which another source is looked for. ``searches``:
    how often sources are looked for in all. ``sure``: acceptance of the drafts so far below which no other is.
    """

    walk: int
    longest: int
    least: float
    doubt: float
    searches: int
    sure: float


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
def _bucket(hashed, bits):  # type: ignore[no-untyped-def]
    mixed = (hashed ^ (hashed >> _HALF)) * _SALT
    return np.int64(mixed >> (_WORD - np.uint64(bits)))


@kernel
def _absorb(hashed, token):  # type: ignore[no-untyped-def]
    """The hash of an n-gram that begins one token earlier."""
    return (hashed + np.uint64(token) + _ONE) * _STEP


@kernel
def _write(logs, log, token):  # type: ignore[no-untyped-def]
    """Write one token, and index the n-grams that end with it."""
    start, bits, last, order = logs.start[log], logs.bits[log], logs.end[log], logs.order
    size = 1 << bits
    tokens, before, head = logs.token, logs.before, logs.head
    tokens[start + (last & (size - 1))] = token
    logs.end[log] = last + 1
    oldest = max(last + 1 - size, 0)
    hashed, depth = np.uint64(0), 0
    for k in range(len(order)):
        while depth < order[k]:
            if last - depth < oldest:
                return
            found = tokens[start + ((last - depth) & (size - 1))]
            if found < 0:
                return
            hashed = _absorb(hashed, found)
            depth += 1
        place = start + _bucket(hashed, bits)
        before[k, start + (last & (size - 1))] = head[k, place]
        head[k, place] = last


@kernel
def extend(logs, log, tokens):  # type: ignore[no-untyped-def]
    """Write tokens (any integers) behind a log."""
    for i in range(len(tokens)):
        _write(logs, log, tokens[i])


@kernel
def copy_row(logs, source, first, target):  # type: ignore[no-untyped-def]
    """Write what a log holds from position ``first`` on behind another one, and that the row ends there."""
    start, size, end = logs.start[source], 1 << logs.bits[source], logs.end[source]
    for p in range(max(first, end - size), end):
        _write(logs, target, logs.token[start + (p & (size - 1))])
    _write(logs, target, ROW_END)


@kernel
def _learn(slot, token, row, count, offer, learned):  # type: ignore[no-untyped-def]
    """Test the last proposal for a slot by the tokens that were committed, whether or not they were drafts."""
    ahead, drafts = offer.ahead[slot], offer.drafts[slot]
    if drafts > 0:  # the text goes on where the draft in place of the last of these tokens is from
        last = min(max(count - 1 - ahead, 0), drafts - 1)
        offer.log[slot], offer.place[slot] = offer.draft_log[slot, last], offer.draft_place[slot, last] - ahead - last
    for j in range(min(ahead + drafts, count)):
        right = offer.token[slot, j] == token[row, j]
        if j >= ahead:
            cell, hazard = offer.cell[slot, j - ahead], offer.hazard[slot, j - ahead]
            length, evidence = cell // EVIDENCE % LENGTHS, cell % EVIDENCE
            counts, fail = learned.tests[cell // (EVIDENCE * LENGTHS), length, evidence], learned.fail[slot]
            counts[0] = counts[0] * learned.cell_kept + 1.0
            counts[1] = counts[1] * learned.cell_kept + (1.0 if right else 0.0)
            fail[0] = fail[0] * learned.slot_kept + (0.0 if right else 1.0)
            fail[1] = fail[1] * learned.slot_kept + (1.0 - hazard)
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
            _learn(slots[i], token, i, counts[i], offer, learned)
            offer.place[slots[i]] += counts[i]
        for j in range(counts[i]):
            _write(logs, slots[i], token[i, j])


@kernel
def _tail(logs, slot, draft, ahead, tail):  # type: ignore[no-untyped-def]
    """The last tokens of a text and the drafts behind it, latest first; how many there are."""
    depth = 0
    while depth < len(tail) and depth < ahead:
        tail[depth] = draft[ahead - 1 - depth]
        depth += 1
    start, size, end = logs.start[slot], 1 << logs.bits[slot], logs.end[slot]
    p = end - 1
    while depth < len(tail) and p >= max(end - size, 0):
        tail[depth] = logs.token[start + (p & (size - 1))]
        p -= 1
        depth += 1
    return depth


@kernel
def _hash(tail, depth, order, hashes):  # type: ignore[no-untyped-def]
    """The hash of the last tokens of each order; of all of them where there are fewer."""
    hashed, d = np.uint64(0), 0
    for k in range(len(order)):
        while d < min(order[k], depth):
            hashed = _absorb(hashed, tail[d])
            d += 1
        hashes[k] = hashed


@kernel
def _match(logs, log, position, tail, depth):  # type: ignore[no-untyped-def]
    """How many tokens up to a position are those of the tail."""
    start, size = logs.start[log], 1 << logs.bits[log]
    oldest = max(logs.end[log] - size, 0)
    m = 0
    while m < depth and position - m >= oldest and logs.token[start + ((position - m) & (size - 1))] == tail[m]:
        m += 1
    return m


@kernel
def _find(logs, log, tail, depth, hashes, walk, found):  # type: ignore[no-untyped-def]
    """Positions behind the longest matches of the tail, among the latest occurrences of its longest n-gram.

    Returns:
        How many were written to ``found``, latest first, and the length of the match.
    """
    start, bits, end = logs.start[log], logs.bits[log], logs.end[log]
    size = 1 << bits
    oldest = max(end - size, 0)
    for k in range(len(logs.order) - 1, -1, -1):
        if logs.order[k] > depth:
            continue
        position = logs.head[k, start + _bucket(hashes[k], bits)]
        number, best = 0, 0
        for _ in range(walk):
            if position < oldest:
                break
            if position + 1 < end:  # else it is the tail itself
                length = _match(logs, log, position, tail, depth)
                if length >= logs.order[k] and length >= best:
                    if length > best:
                        number, best = 0, length
                    found[number] = position + 1
                    number += 1
            position = logs.before[k, start + (position & (size - 1))]
        if number:
            return number, best
    return 0, 0


@kernel
def _next(logs, log, position, own, draft):  # type: ignore[no-untyped-def]
    """The token at a position; behind its own text a sequence goes on with its drafts. Negative where there is none."""
    end = logs.end[log]
    if position < end:
        return logs.token[logs.start[log] + (position & ((1 << logs.bits[log]) - 1))]
    return draft[position - end] if own else ROW_END


@kernel
def _vote(logs, log, found, number, j, own, draft, follows):  # type: ignore[no-untyped-def]
    """What follows most often: token, its votes, all votes. The latest occurrence decides between equals.

    What follows each of the occurrences is written to ``follows``.
    """
    token, votes, voters, alike = -1, 0, 0, True
    for a in range(number):
        follows[a] = _next(logs, log, found[a] + j, own, draft)
        voters += follows[a] >= 0
        alike = alike and follows[a] == follows[0]
    if alike and voters:
        return follows[0], voters, voters
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
def _agree(found, number, follows, token):  # type: ignore[no-untyped-def]
    """Keep the occurrences that go on with a token."""
    kept = 0
    for a in range(number):
        if follows[a] == token:
            found[kept] = found[a]
            kept += 1
    return kept


@kernel
def _length_class(length):  # type: ignore[no-untyped-def]
    """1, 2, 3, 4-5, 6-7, 8-11, 12-15, 16-31, 32-63, 64 and more."""
    if length < 4:
        return length - 1
    if length < 8:
        return 3 + (length - 4) // 2
    if length < 16:
        return 5 + (length - 8) // 4
    if length < 32:
        return 7
    return 8 if length < 64 else 9


@kernel
def _evidence_class(votes, voters):  # type: ignore[no-untyped-def]
    """All of 1, of 2-3, of 4 and more voters; at least 3/4, at least 1/2, fewer."""
    if votes == voters:
        return 0 if voters == 1 else (1 if voters < 4 else 2)
    if 4 * votes >= 3 * voters:
        return 3
    return 4 if 2 * votes >= voters else 5


@kernel
def _cell(source, length, votes, voters):  # type: ignore[no-untyped-def]
    return (source * LENGTHS + _length_class(length)) * EVIDENCE + _evidence_class(votes, voters)


@kernel
def _hazard(learned, cell, length, votes, voters):  # type: ignore[no-untyped-def]
    """Probability that a draft is right given those before it: what its class showed, with the share as prior."""
    prior = (votes + 0.5) / (voters + 1.0) * length / (length + 1.0)
    counts = learned.tests[cell // (EVIDENCE * LENGTHS), cell // EVIDENCE % LENGTHS, cell % EVIDENCE]
    return (counts[1] + learned.cell_prior * prior) / (counts[0] + learned.cell_prior)


@kernel
def _of_slot(learned, slot, hazard):  # type: ignore[no-untyped-def]
    """The same for one sequence, which fails in proportion to what its classes expect."""
    ratio = (learned.fail[slot, 0] + learned.slot_prior) / (learned.fail[slot, 1] + learned.slot_prior)
    return 1.0 - min(1.0, (1.0 - hazard) * ratio)


@kernel
def _resumes(logs, offer, slot, first):  # type: ignore[no-untyped-def]
    """Whether the log that was followed last has a token where the next one stands."""
    log, place = offer.log[slot], offer.place[slot] + first
    return log >= 0 and max(logs.end[log] - (1 << logs.bits[log]), 0) <= place < logs.end[log]


@kernel
def _best_source(logs, slot, ahead, begins, tail, depth, hashes, learned, offer, found, follows):  # type: ignore[no-untyped-def]
    """The source whose first draft is most probable, of equals the first.

    Args:
        logs: :class:`Logs`.
        slot: of the sequence.
        ahead: drafts that stand behind its text.
        begins: whether none of them is from here; else the sources are those behind drafts.
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
    for source in range(_OWN if begins else _OWN_BEHIND, _OWN_BEHIND if begins else SOURCES):
        log = slot if source in (_OWN, _OWN_BEHIND) else shared
        if source != _RESUMED:
            places, matched = _find(logs, log, tail, depth, hashes, found.shape[1], found[source])
        elif _resumes(logs, offer, slot, ahead):
            log, places, matched = offer.log[slot], 1, 1
            found[source, 0] = offer.place[slot] + ahead
        else:
            continue
        token, votes, voters = _vote(
            logs, log, found[source], places, 0, log == slot, offer.token[slot], follows[source]
        )
        if voters == 0:
            continue
        hazard = _hazard(learned, _cell(source, matched, votes, voters), matched, votes, voters)
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
        cell = _cell(source, matched, votes, voters)
        hazard = _hazard(learned, cell, matched, votes, voters)
        right = sure * _of_slot(learned, slot, hazard)
        if right < search.least or (j > begin and hazard < search.doubt):
            break
        sure = right
        offer.token[slot, first + j] = token[j] = draft
        acceptance[j] = sure
        offer.cell[slot, j], offer.hazard[slot, j] = cell, hazard
        if votes < number:
            number = _agree(places, number, follows, draft)
        offer.draft_log[slot, j], offer.draft_place[slot, j] = log, places[0] + j - begin
        j += 1
        if j == most:
            break
        draft, votes, voters = _vote(logs, log, places, number, j - begin, log == slot, offer.token[slot], follows)
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
            if drafts >= most or sure < search.sure:
                break
            depth = _tail(logs, slot, offer.token[slot], first + drafts, tail)
            _hash(tail, depth, logs.order, hashes)
            chosen = _best_source(
                logs, slot, first + drafts, turn == 0, tail, depth, hashes, learned, offer, found, follows
            )
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
