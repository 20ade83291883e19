"""Readable history drafts: lists that are searched from the end, which every fast index has to equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from wedlm_core.engine.drafting.constants import DraftingConstants

__all__ = ["HistoryOracle", "OracleProposal"]

_WORD = (1 << 64) - 1
_ROW_END = -1
_LENGTHS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Where the classes of match lengths begin, but for the first."""


@dataclass(frozen=True, kw_only=True)
class OracleProposal:
    """Drafts of one sequence, as in :class:`wedlm_core.engine.drafting.history.Proposal`."""

    tokens: list[int]
    acceptance: list[float]
    match: int


@dataclass(kw_only=True)
class _Log:
    """All tokens ever written; the last ``1 << bits`` are remembered."""

    bits: int
    tokens: list[int] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        return max(0, len(self.tokens) - (1 << self.bits))


@dataclass(kw_only=True)
class _Offer:
    """The last proposal of a slot: given drafts, and the class and probability of each proposed one.

    Attributes:
        places: of each draft, whether it is from the own text, and where it stands there.
    """

    given: list[int]
    drafts: list[int] = field(default_factory=list)
    cells: list[tuple[int, int, int]] = field(default_factory=list)
    hazards: list[float] = field(default_factory=list)
    places: list[tuple[bool, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where the end of a text occurred: positions behind it, latest first, and how many tokens match there.

    Attributes:
        source: 0 own text, 1 finished rows, 2 where the last match went on; behind drafts 3 own text, 4 finished rows;
            where a row begins 5 own text, 6 finished rows.
        own: whether the log is the own text.
    """

    log: _Log
    source: int
    own: bool
    positions: list[int]
    length: int


class HistoryOracle:
    """What :class:`wedlm_core.engine.drafting.history.History` does, for one sequence at a time.

    The sizes of logs are the history's to choose (:meth:`resize`): they are about memory.
    """

    def __init__(self, shared_bits: int, constants: DraftingConstants) -> None:
        prior, walk = constants.class_prior, constants.walk
        self.tuning = SimpleNamespace(
            orders=constants.orders, walk=walk, longest=walk, least_acceptance=constants.least_acceptance,
            least_probability=constants.least_probability, searches=3,
            cell_kept=constants.class_kept, slot_kept=0.95, cell_prior=prior, slot_prior=prior,
        )  # fmt: skip
        self._shared = _Log(bits=shared_bits)
        self._texts: dict[int, _Log] = {}
        self._output: dict[int, int] = {}
        self._offers: dict[int, _Offer] = {}
        self._cells: dict[tuple[int, int, int], tuple[float, float]] = {}  # tested, right
        self._fails: dict[int, tuple[float, float]] = {}  # failed, expected
        self._begins: set[int] = set()  # without output yet
        self._followed: dict[int, tuple[bool, int]] = {}  # whether in the own text, and where the next token stands

    def resize(self, slot: int, bits: int) -> None:
        """The log of a slot remembers ``1 << bits`` tokens from now on."""
        self._texts[slot].bits = bits

    def open(self, slot: int, tokens: Sequence[int], output: int) -> None:
        """Begin a sequence; the size of its log is to be set before anything else."""
        self._texts[slot], self._output[slot] = _Log(bits=62, tokens=list(tokens)), len(tokens) - output
        self._fails[slot] = (0.0, 0.0)
        self._begins = self._begins - {slot} if output else self._begins | {slot}
        self._offers.pop(slot, None)
        self._followed.pop(slot, None)

    def close(self, slot: int, keep: bool) -> None:
        """End a sequence."""
        text, first = self._texts.pop(slot), self._output.pop(slot)
        if keep and len(text.tokens) > first:
            begin = max(0, first - self.tuning.orders[-1], text.oldest)
            self._shared.tokens += [*text.tokens[begin:], _ROW_END]

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Take in committed tokens."""
        if tokens and slot in self._offers:
            self._learn(slot, tokens, self._offers.pop(slot))
        if tokens:
            self._begins.discard(slot)
        if slot in self._followed:
            own, place = self._followed[slot]
            self._followed[slot] = own, place + len(tokens)
        self._texts[slot].tokens += tokens

    def _learn(self, slot: int, tokens: Sequence[int], offer: _Offer) -> None:
        tuning = self.tuning
        if offer.drafts:  # the text goes on where the draft in place of the last of these tokens is from
            last = min(max(len(tokens) - 1 - len(offer.given), 0), len(offer.drafts) - 1)
            own, place = offer.places[last]
            self._followed[slot] = own, place - len(offer.given) - last
        for j, (draft, token) in enumerate(zip(offer.given + offer.drafts, tokens, strict=False)):
            right = draft == token
            if j >= len(offer.given):
                cell, hazard = offer.cells[j - len(offer.given)], offer.hazards[j - len(offer.given)]
                tested, rights = self._cells.get(cell, (0.0, 0.0))
                self._cells[cell] = (tested * tuning.cell_kept + 1, rights * tuning.cell_kept + right)
                failed, expected = self._fails[slot]
                self._fails[slot] = (failed * tuning.slot_kept + (not right), expected * tuning.slot_kept + 1 - hazard)
            if not right:
                return

    def propose(self, slot: int, budget: int, given: Sequence[int] = ()) -> OracleProposal:
        """Drafts behind the text and ``given`` drafts."""
        offer = _Offer(given=list(given))
        self._offers[slot] = offer
        text = self._texts[slot]
        sure, acceptance, match = 1.0, list[float](), 0
        for turn in range(self.tuning.searches):
            begin = len(offer.drafts)
            tail = (text.tokens[text.oldest :] + offer.given + offer.drafts)[-self.tuning.longest :]
            if turn == 0 and slot in self._begins:
                sources = [self._find(text, 5, tail), self._find(self._shared, 6, tail)]
            elif turn == 0:
                sources = [self._find(text, 0, tail), self._find(self._shared, 1, tail)]
                sources.append(self._resumed(slot, len(given)))
            else:
                sources = [self._find(text, 3, tail), self._find(self._shared, 4, tail)]
            places = self._best(sources, offer)
            if len(offer.drafts) >= budget or sure < self.tuning.least_acceptance or places is None:
                break
            if turn == 0:
                match = places.length if places.own else -places.length
                self._followed[slot] = places.own, places.positions[0] - len(given)
            sure = self._follow(slot, places, budget, sure, offer, acceptance)
            if len(offer.drafts) == begin:
                break
        return OracleProposal(tokens=offer.drafts, acceptance=acceptance, match=match)

    def _follow(
        self, slot: int, places: _Places, budget: int, sure: float, offer: _Offer, acceptance: list[float]
    ) -> float:
        """Propose what follows the places, up to where they end or are in doubt; how sure all drafts are."""
        positions, begin = places.positions, len(offer.drafts)
        while len(offer.drafts) < budget:
            j = len(offer.drafts) - begin
            following = self._following(places, positions, j, offer)
            if not following:
                break
            token, cell, hazard = self._vote(places, following, j)
            failed, expected = self._fails[slot]
            weight = self.tuning.slot_prior
            right = sure * (1 - min(1.0, (1 - hazard) * ((failed + weight) / (expected + weight))))
            if right < self.tuning.least_acceptance or (j > 0 and hazard < self.tuning.least_probability):
                break
            sure = right
            acceptance.append(sure)
            positions = [p for p in positions if _token(places, p + j, offer) == token]
            offer.places.append((places.own, positions[0] + j))
            offer.drafts.append(token)
            offer.cells.append(cell)
            offer.hazards.append(hazard)
        return sure

    def _resumed(self, slot: int, ahead: int) -> _Places:
        """Where the last match went on, as if what followed it there had been what was committed."""
        own, place = self._followed.get(slot, (False, -1 << 60))
        log = self._texts[slot] if own else self._shared
        there = log.oldest <= place + ahead < len(log.tokens)
        return _Places(log=log, source=2, own=own, positions=[place + ahead] if there else [], length=1)

    def _best(self, sources: Sequence[_Places], offer: _Offer) -> _Places | None:
        """The source whose first draft is most probable, of equals the first; None where there is no draft."""
        best, chosen = -1.0, None
        for places in sources:
            following = self._following(places, places.positions, 0, offer)
            if following and self._vote(places, following, 0)[2] > best:
                best, chosen = self._vote(places, following, 0)[2], places
        return chosen

    def _following(self, places: _Places, positions: Sequence[int], j: int, offer: _Offer) -> list[int]:
        """The tokens ``j`` places on in each occurrence that has one."""
        found = [_token(places, p + j, offer) for p in positions]
        return [token for token in found if token != _ROW_END]

    def _vote(self, places: _Places, following: Sequence[int], j: int) -> tuple[int, tuple[int, int, int], float]:
        """The most frequent token (the first in the list, of equals), its class, and its probability."""
        token, votes = Counter(following).most_common(1)[0]
        voters, length = len(following), places.length + j
        cell = (places.source, sum(length >= begin for begin in _LENGTHS), _evidence(votes, voters))
        prior = (votes + 0.5) / (voters + 1) * length / (length + 1)
        tested, right = self._cells.get(cell, (0.0, 0.0))
        weight = self.tuning.cell_prior
        return token, cell, (right + weight * prior) / (tested + weight)

    def _find(self, log: _Log, source: int, tail: Sequence[int]) -> _Places:
        """The longest matches among the latest occurrences, by the highest order that has any."""
        tokens, end = log.tokens, len(log.tokens)
        for order in reversed(self.tuning.orders):
            if len(tail) < order:
                continue
            wanted, matches = _bucket(tail[-order:], log.bits), []
            same = [p for p in range(end - 1, log.oldest - 1, -1) if p - order + 1 >= 0
                    and _ROW_END not in tokens[p - order + 1 : p + 1]
                    and _bucket(tokens[p - order + 1 : p + 1], log.bits) == wanted]  # fmt: skip
            for p in same[: self.tuning.walk]:
                length = _common(tokens[log.oldest : p + 1], tail)
                if p + 1 < end and length >= order:
                    matches.append((length, p + 1))
            if matches:
                best = max(length for length, _ in matches)
                positions = [p for length, p in matches if length == best]
                return _Places(log=log, source=source, own=log is not self._shared, positions=positions, length=best)
        return _Places(log=log, source=source, own=log is not self._shared, positions=[], length=0)


def _token(places: _Places, position: int, offer: _Offer) -> int:
    """The token at a position; behind its own text a sequence goes on with its drafts."""
    tokens = places.log.tokens
    if position < len(tokens):
        return tokens[position]
    return _ROW_END if not places.own else (offer.given + offer.drafts)[position - len(tokens)]


def _common(text: Sequence[int], tail: Sequence[int]) -> int:
    """How many tokens are the same at the end of both."""
    number = 0
    for one, other in zip(reversed(text), reversed(tail), strict=False):
        if one != other:
            break
        number += 1
    return number


def _evidence(votes: int, voters: int) -> int:
    if votes == voters:
        return 0 if voters == 1 else 1 if voters < 4 else 2
    return 3 if votes / voters >= 0.75 else 4 if votes / voters >= 0.5 else 5


def _bucket(ngram: Sequence[int], bits: int) -> int:
    """The kernel's hash of an n-gram."""
    hashed = 0
    for token in reversed(ngram):
        hashed = (hashed + token + 1) * 0xD6E8FEB86659FD93 & _WORD
    return ((hashed ^ hashed >> 32) * 0x9E3779B97F4A7C15 & _WORD) >> (64 - bits)
