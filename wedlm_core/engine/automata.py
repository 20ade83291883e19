"""Sequences whose grammars are automata: their drafts and what their rows may choose, with no matcher for each.

All of them take in a forward's commits and draft their next windows in one pass
(:func:`wedlm_core.kernels.cpu.grammar_walk.draft_windows`). Where a walk comes to a state of which nothing is known, a
matcher is brought there and asked, once. Where its answers do not fit the automaton, the grammar is an automaton no
more, and its sequences get matchers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from wedlm_core.decoding.allowed_tokens import AllowedTokens, only
from wedlm_core.engine.known_states import KnownStates
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import Constraint, Grammar, GrammarCompiler
from wedlm_core.kernels.cpu.grammar_walk import DONE, NO_TEXT, PLACES, Drafted, Proposed, draft_windows
from wedlm_core.kernels.cpu.grammar_windows import note_states

__all__ = ["Automata", "WalkedLines"]


@dataclass(frozen=True, kw_only=True)
class WalkedLines:
    """What the rows of a forward may choose, as in :class:`wedlm_core.decoding.allowed_tokens.AllowedTokens`.

    Attributes:
        bits_UW: int32.
        line_N: int64.
        facts_3S: int64 ``[3, slots]``: first state, states, position.
    """

    bits_UW: np.ndarray
    line_N: IntArray
    facts_3S: IntArray

    def beside(self, other: WalkedLines) -> WalkedLines:
        """These and those of other sequences."""
        line_N = np.where(other.line_N >= 0, other.line_N + len(self.bits_UW), other.line_N)
        facts_3S = np.where(other.facts_3S[0] >= 0, other.facts_3S, self.facts_3S)
        facts_3S[0, other.facts_3S[0] >= 0] += len(self.line_N)
        return WalkedLines(
            bits_UW=np.concatenate([self.bits_UW, other.bits_UW]),
            line_N=np.concatenate([self.line_N, line_N]),
            facts_3S=facts_3S,
        )


class Automata:
    """Places of sequences in their automata, by slot.

    Args:
        compiler: of the grammars.
        table: slots; ``output`` and ``constrained`` are read.
        walking: guards what is learned of automata.

    Attributes:
        walks: bool by slot: the sequence is walked here.
    """

    def __init__(self, compiler: GrammarCompiler, table: SlotTable, walking: Optimisation | None = None) -> None:
        self._table, self._walking = table, walking or Optimisation("an automaton", "a matcher takes its place")
        self._known = KnownStates(compiler.token_bytes(), compiler.eos_token_ids)
        self._number_of: dict[Grammar, int] = {}
        self._grammars: list[Grammar] = []
        self._openings: list[int] = []  # the text with which every output begins
        self._doubted: set[int] = set()  # grammars that are no automata after all
        self._refused = 0  # sequences that were, since the tables are full
        slots, places = table.source.shape
        self.walks = np.zeros(slots, dtype=np.bool_)
        self._grammar, self._state, self._last, self._text, self._done, self._lead = np.zeros((6, slots), np.int64)
        self._token = np.zeros((slots, places), dtype=np.int64)
        self._line = np.zeros((slots, places + 1), dtype=np.int64)
        self._facts_3S = np.full((3, slots), -1, dtype=np.int64)  # first state, states, position of the first
        self._given: Callable[[], AllowedTokens] | None = None  # over these and the lines
        self._given_bits: np.ndarray | None = None
        self._record = np.zeros(1, dtype=PLACES)
        self._record["slots"], self._record["places"] = slots, places
        for name in ("grammar", "state", "last", "text", "done", "lead", "token", "line"):
            self._record[name] = getattr(self, f"_{name}").ctypes.data

    def leave(self, slot: int) -> None:
        """Walk a sequence no more."""
        self.walks[slot] = False

    def enter(self, slot: int, grammar: Grammar) -> bool:
        """Let a new sequence be walked here; False where its grammar is no automaton, or no one knows yet."""
        number = self._number(grammar)
        self.walks[slot] = number is not None
        if number is None:
            return False
        self._grammar[slot], self._state[slot], self._last[slot] = number, 0, -1
        self._text[slot], self._done[slot], self._lead[slot] = self._openings[number], 0, 0
        return True

    def _number(self, grammar: Grammar) -> int | None:
        """The number of a grammar's automaton.

        Full tables are emptied when no sequence is walked. Where sequences come without a pause, none is walked any
        more once as many as there are slots were refused for that: until those that are walked have ended.
        """
        if self._refused > len(self.walks) and not self._emptied():
            return None
        number = self._number_of.get(grammar)
        if number is not None or (automaton := grammar.automaton()) is None:
            return number
        if self._known.is_full and not self._emptied():
            self._refused += 1
            return None
        matcher = grammar.matcher.deep_copy()
        number = self._number_of[grammar] = self._known.add(automaton)
        self._grammars.append(grammar)
        learned = self._walking.attempt(self._known.learn_text, number, 0, -1, matcher)
        self._openings.append(self._known.text_of(number, 0, -1))
        if not learned:
            self._distrust(number)
            return None
        return number

    def _emptied(self) -> bool:
        """Forget all automata, unless a sequence is walked; whether that was done."""
        if self.walks.any():
            return False
        self._known.clear()
        for forgotten in (self._grammars, self._openings, self._number_of, self._doubted):
            forgotten.clear()
        self._refused = 0
        return True

    def walk(self, proposed: Proposed, drafted: Drafted, lines_W: IntArray) -> list[int]:
        """Take in what sequences commit, and draft the next windows of those that go on.

        Args:
            proposed: to sequences of a forward.
            drafted: written.
            lines_W: which of them are walked here.

        Returns:
            Those that a matcher has to walk from now on (:meth:`give_up`): nothing of this forward was taken in.
        """
        lost, left_W = list[int](), lines_W
        if self._doubted:
            doubted_W = np.isin(self._grammar[proposed.slots[lines_W]], [*self._doubted])
            lost, left_W = lines_W[doubted_W].tolist(), lines_W[~doubted_W]
        while draft_windows(self._known.record, self._record, *proposed, *drafted, left_W):
            lacking = left_W[drafted.outcome[left_W] >= NO_TEXT].tolist()
            learned = [g for g in lacking if self._learns(proposed, drafted, g)]
            lost += sorted({*lacking} - {*learned})
            drafted.outcome[lost] = DONE
            left_W = np.array(learned, dtype=np.int64)
        return lost

    def _learns(self, proposed: Proposed, drafted: Drafted, g: int) -> bool:
        """:meth:`_learn`; an automaton that raises is none."""
        learned = self._walking.attempt(self._learn, proposed, drafted, g)
        if learned is None:
            self._distrust(int(self._grammar[proposed.slots[g]]))
        return bool(learned)

    def _learn(self, proposed: Proposed, drafted: Drafted, g: int) -> bool:
        """Bring a matcher to where a walk lacks knowledge, and ask it; False if its answer does not fit."""
        slot = int(proposed.slots[g])
        number = int(self._grammar[slot])
        state, last, taken, drafts = drafted.missing(g)
        emitted, output = int(proposed.emitted[g]), self._table.tokens_of(slot)
        path = [*output[: len(output) - emitted + taken], *drafted.token_GL[g, :drafts].tolist()]
        grammar, known = self._grammars[number], self._known
        for _ in range(2):  # what copies of a matcher share has its limits, which earlier ones may have used up
            matcher = grammar.matcher.deep_copy()
            if not path or matcher.consume_tokens(path):
                if drafted.outcome[g] == NO_TEXT:
                    learned = known.text_of(number, state, last) >= 0 or known.learn_text(number, state, last, matcher)
                else:
                    learned = known.knows_line(number, state) or known.learn_line(number, state, matcher)
                if learned:
                    return True
            if not matcher.is_error():
                break
            grammar.renew()
        self._distrust(number)
        return False

    def _distrust(self, number: int) -> None:
        self._grammars[number].distrust()
        self._doubted.add(number)
        self._number_of.pop(self._grammars[number], None)

    def give_up(self, slot: int, emitted: int) -> Constraint:
        """A matcher for a sequence that is walked here no more, at its place before what was emitted last."""
        output = self._table.tokens_of(slot)
        constraint = self._grammars[int(self._grammar[slot])].constraint()
        constraint.replay(output[: len(output) - emitted], self._token[slot, : self._lead[slot]].tolist())
        self.leave(slot)
        return constraint

    def begin(self, slots_D: IntArray, cached_D: IntArray, prefill_D: IntArray) -> tuple[int, int]:
        """Note what the next forward's rows may choose (:meth:`allowed`, :meth:`lines`).

        Args:
            slots_D: of its decoding sequences.
            cached_D: tokens that each has in the KV pool.
            prefill_D: prefill rows of each.

        Returns:
            How many of the sequences have a grammar, and how many of these are walked here.
        """
        own, walked = note_states(
            slots_D, cached_D, prefill_D, self._table.constrained, self.walks, self._lead, self._line.shape[1],
            self._facts_3S,
        )  # fmt: skip
        return int(own), int(walked)

    def allowed(self) -> Callable[[], AllowedTokens]:
        """What the next forward's rows may choose, where it has walked sequences only and runs on the CPU.

        It is read from the places themselves, so it is valid until these change.
        """
        if self._given is None or self._given_bits is not self._known.bits:
            self._given_bits = self._known.bits
            first_S, count_S, position_S = torch.from_numpy(self._facts_3S)
            given = AllowedTokens(
                bits_UW=torch.from_numpy(self._given_bits), line_N=torch.from_numpy(self._line.reshape(-1)),
                first_S=first_S, count_S=count_S, position_S=position_S,
            )  # fmt: skip
            self._given = lambda: given
        return self._given

    def lines(self) -> WalkedLines:
        """What the next forward's rows may choose: a copy of what is needed for that."""
        slots_G = np.flatnonzero(self._facts_3S[0] >= 0)
        there_GN = np.arange(self._line.shape[1]) <= self._lead[slots_G, None]
        line_GN = np.where(there_GN, self._line[slots_G], only(0))
        used, line_SN = np.unique(line_GN[line_GN >= 0]), np.zeros_like(self._line)
        line_SN[slots_G] = np.where(line_GN >= 0, np.searchsorted(used, line_GN), line_GN)
        return WalkedLines(bits_UW=self._known.bits[used], line_N=line_SN.reshape(-1), facts_3S=self._facts_3S.copy())
