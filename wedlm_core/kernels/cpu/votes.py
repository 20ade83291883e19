"""What follows the matches of a text: votes on the next token, and how far votes of their kind are to be trusted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.token_logs import ROW_END

__all__ = [
    "EVIDENCE",
    "LENGTHS",
    "SOURCES",
    "Learned",
    "cell_of",
    "hazard_of",
    "hazard_of_slot",
    "keep_agreeing",
    "learn",
    "vote",
]

Array = np.ndarray[Any, np.dtype[Any]]

SOURCES = 7
"""The own text, the shared log, and either where the last match went on, although another token followed; both behind
drafts from here; the two where a row begins: all prompts that end as a template does match there.
"""
LENGTHS = 10
"""Classes of match lengths, :func:`_length_class`."""
EVIDENCE = 6
"""Classes of votes, :func:`_evidence_class`."""


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


@kernel
def _next(logs, log, position, own, draft):  # type: ignore[no-untyped-def]
    """The token at a position; behind its own text a sequence goes on with its drafts. Negative where there is none."""
    end = logs.end[log]
    if position < end:
        return logs.token[logs.start[log] + (position & ((1 << logs.bits[log]) - 1))]
    return draft[position - end] if own else ROW_END


@kernel
def vote(logs, log, found, number, j, own, draft, follows):  # type: ignore[no-untyped-def]
    """What follows some occurrences most often; the latest of them decides between equals.

    Args:
        logs: :class:`wedlm_core.kernels.cpu.token_logs.Logs`.
        log: that they are in.
        found: int64, positions behind them, latest first.
        number: how many there are.
        j: tokens from there on that are passed over.
        own: whether the log is the sequence's own text, which goes on with its drafts.
        draft: integers, these drafts.
        follows: int64, written: what follows each of the occurrences, negative for nothing.

    Returns:
        Token (-1 for none), its votes, all votes.
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
def keep_agreeing(found, number, follows, token):  # type: ignore[no-untyped-def]
    """Keep those of the ``number`` occurrences ``found`` that go on (``follows``) with a token; how many they are."""
    kept = 0
    for a in range(number):
        if follows[a] == token:
            found[kept] = found[a]
            kept += 1
    return kept


@kernel
def learn(learned, slot, cell, hazard, right):  # type: ignore[no-untyped-def]
    """Take in whether a draft was right.

    Args:
        learned: :class:`Learned`, changed.
        slot: of its sequence.
        cell: its class, :func:`cell_of`.
        hazard: probability that it is right, by its class.
        right: whether it was.
    """
    counts, fail = _counts(learned, cell), learned.fail[slot]
    counts[0] = counts[0] * learned.cell_kept + 1.0
    counts[1] = counts[1] * learned.cell_kept + (1.0 if right else 0.0)
    fail[0] = fail[0] * learned.slot_kept + (0.0 if right else 1.0)
    fail[1] = fail[1] * learned.slot_kept + (1.0 - hazard)


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
def _counts(learned, cell):  # type: ignore[no-untyped-def]
    """Tested and right drafts of a class."""
    return learned.tests[cell // (EVIDENCE * LENGTHS), cell // EVIDENCE % LENGTHS, cell % EVIDENCE]


@kernel
def cell_of(source, length, votes, voters):  # type: ignore[no-untyped-def]
    """The class of a draft: its source, the length of the match that it follows, its votes and all votes."""
    return (source * LENGTHS + _length_class(length)) * EVIDENCE + _evidence_class(votes, voters)


@kernel
def hazard_of(learned, cell, length, votes, voters):  # type: ignore[no-untyped-def]
    """Probability that a draft is right given those before it: what its class showed, with the share as prior.

    Args:
        learned: :class:`Learned`.
        cell: its class, :func:`cell_of`.
        length: of the match that it follows, in tokens.
        votes: for it.
        voters: all votes.
    """
    prior = (votes + 0.5) / (voters + 1.0) * length / (length + 1.0)
    counts = _counts(learned, cell)
    return (counts[1] + learned.cell_prior * prior) / (counts[0] + learned.cell_prior)


@kernel
def hazard_of_slot(learned, slot, hazard):  # type: ignore[no-untyped-def]
    """The same for one sequence, which fails in proportion to what its classes expect."""
    ratio = (learned.fail[slot, 0] + learned.slot_prior) / (learned.fail[slot, 1] + learned.slot_prior)
    return 1.0 - min(1.0, (1.0 - hazard) * ratio)
