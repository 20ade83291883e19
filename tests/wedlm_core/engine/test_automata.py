"""Sequences that are walked through automata: what they draft and may choose is what a matcher says of each."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import torch

from testing.engine.grammar_oracle import allowed_tokens
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.decoding.allowed_tokens import only
from wedlm_core.engine import known_states
from wedlm_core.engine.automata import Automata
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.grammar import AN_END, UNKNOWN, Constraint, Grammar, GrammarCompiler, Proposals
from wedlm_core.grammar import compiler as compiler_module
from wedlm_core.grammar.automaton import automaton_of
from wedlm_core.kernels.cpu.grammar_walk import DONE, Drafted, Proposed
from wedlm_core.model.sources import resolve
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

WANTED = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
REGULAR = [name for name, wanted in WANTED.items() if automaton_of(wanted) is not None]
VOCABULARY, SLOTS, WINDOW, LIMIT = 1024, 6, 6, 60
LINE = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"type": "integer"}},
        "required": ["name", "n"], "additionalProperties": False}  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Automata from the first sequence on."""
    monkeypatch.setattr(compiler_module, "_FEW", 0)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("tiny"))


def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer().to_json(), VOCABULARY, tokenizer().eos_token_ids)


class Pair:
    """Sequences of one grammar, each walked by an automaton and by a matcher."""

    def __init__(self, grammar: Grammar, compiled: GrammarCompiler, sequences: int) -> None:
        self.grammar, self.table = grammar, SlotTable(SLOTS, 2 * WINDOW + 1)
        self.automata = Automata(compiled, self.table)
        self.slots = np.arange(SLOTS)[::-1][:sequences].copy()  # not in order
        for slot in self.slots.tolist():
            self.table.set_limit(slot, LIMIT)
            assert self.automata.enter(slot, grammar)
        self.matchers = [grammar.constraint() for _ in self.slots]
        self.outputs: list[list[int]] = [[] for _ in self.slots]

    def commit(self, tokens: list[list[int]]) -> None:
        for slot, output, more in zip(self.slots.tolist(), self.outputs, tokens, strict=True):
            output += more
            self.table.output[slot, : len(output)], self.table.generated[slot] = output, len(output)

    def walk(self, chosen: list[list[int]], emitted: list[int], offered: list[Proposals], most: int) -> Drafted:
        """What the automaton drafts behind commits, of which ``chosen`` are the first."""
        count = len(self.slots)
        numbers = (self.slots, emitted, emitted, np.array(emitted) + 1, [0] * count, [most] * count, [3] * count,
                   [one.most for one in offered], [1] * count, range(count)[::-1])  # fmt: skip
        proposed = Proposed(
            np.array([list(row) for row in numbers]),
            _table(chosen[::-1]),
            _table([list(one.tokens) for one in offered[::-1]]).astype(np.int32),
        )
        drafted = Drafted.empty(count, self.table.source.shape[1])
        assert not self.automata.walk(proposed, drafted, np.arange(count))
        return drafted

    def states(self, g: int, lead: int) -> list[set[int]]:
        """The tokens that may be chosen before the first draft and behind each."""
        nothing = np.zeros(len(self.slots), dtype=np.int64)
        self.table.constrained[self.slots] = True
        assert self.automata.begin(self.slots, np.arange(len(self.slots)) - 1, nothing) == (len(self.slots),) * 2
        lines, given = self.automata.lines(), self.automata.allowed()()
        first, count, position = lines.facts_3S[:, self.slots[g]].tolist()
        assert (count, position) == (lead + 1, g)
        place_R = torch.arange(-1, count + 1) + position
        both = [
            (lines.bits_UW, lines.line_N[first : first + count].tolist()),
            (
                given.bits_UW.numpy(),
                given.rows(torch.full((count + 2,), int(self.slots[g])), place_R).line_R.tolist()[1:-1],
            ),
        ]
        found = [[{only(one)} if one < -1 else set(_tokens(bits_UW[one])) for one in own] for bits_UW, own in both]
        assert found[0] == found[1]
        return found[0]


def history(rng: random.Random, allowed: list[int]) -> Proposals:
    """What history proposes, mostly what may come first."""
    tokens = [rng.choice(allowed) if rng.random() < 0.8 else rng.randrange(900) for _ in range(rng.randrange(5))]
    return Proposals(tokens, len(tokens), DraftSource.HISTORY)


def _table(rows: list[list[int]]) -> np.ndarray:
    width = 1 + max(map(len, rows))
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)


def _tokens(bits_W: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(bits_W.view(np.uint8), bitorder="little")).tolist()


def assert_drafts_equal(pair: Pair, drafted: Drafted, g: int) -> None:
    constraint: Constraint = pair.matchers[g]
    tokens, sources, states = constraint.drafts
    lead = int(drafted.lead[g])
    assert tuple(drafted.token_GL[g, :lead].tolist()) == tokens
    assert tuple(drafted.source_GL[g, :lead].tolist()) == sources
    assert int(drafted.masks[g]) == (0 if constraint.ends else max(0, min(3, MOST - lead)))
    for place, (may, state) in enumerate(zip(pair.states(g, lead), states, strict=True)):
        if state == UNKNOWN:
            assert may == set(allowed_tokens(pair.grammar, [*pair.outputs[g], *tokens[:place]]))
        else:
            assert may == ({2} if state == AN_END else {state})


MOST = 7


@pytest.mark.parametrize("name", REGULAR)
def test_drafts_and_choices_are_those_of_matchers(name: str) -> None:
    rng, compiled = random.Random(name), compiler()
    pair = Pair(compiled.compile(WANTED[name]), compiled, 3)
    lives = [True] * 3
    chosen: list[list[int]] = [[], [], []]
    for _ in range(9):
        offered = [history(rng, allowed_tokens(pair.grammar, output)) for output in pair.outputs]
        for matcher, one in zip(pair.matchers, offered, strict=True):
            matcher.draft(one, most=MOST)
        drafted = pair.walk(chosen, [len(row) for row in chosen], offered, MOST)
        for g in range(3):
            if lives[g]:
                assert drafted.outcome[g] == DONE
                assert_drafts_equal(pair, drafted, g)
        chosen = []
        for g, matcher in enumerate(pair.matchers):
            if not lives[g]:
                chosen.append([])
                continue
            kept = rng.randrange(len(matcher.drafts.tokens) + 1)
            row = list(matcher.drafts.tokens[:kept])
            row.append(rng.choice(allowed_tokens(pair.grammar, [*pair.outputs[g], *row])))
            lives[g] = row[-1] != 2
            chosen.append(row if lives[g] else [])
            if lives[g]:
                assert matcher.accept(row) is None
        pair.commit(chosen)
        if not any(lives):
            return


@pytest.mark.parametrize("limit", ["_MOST_STATES", "_MOST_TEXTS"])
def test_full_tables_are_emptied_though_sequences_come_without_a_pause(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as as many as there are slots were refused, and those that are walked have ended."""
    monkeypatch.setattr(known_states, limit, 2)
    compiled = compiler()
    automata = Automata(compiled, SlotTable(SLOTS, 2 * WINDOW + 1))
    first, second, third = (compiled.compile(StructuredOutputs(choice=[word])) for word in ("yes", "perhaps", "no"))
    assert automata.enter(0, first)
    rng, entered, refused = random.Random(1), list[Grammar](), list[int]()
    for turn in range(1, 3000):
        slot, grammar = turn % SLOTS, rng.choices([first, second, third], [0.9, 0.05, 0.05])[0]
        automata.leave(slot)
        if automata.enter(slot, grammar):
            entered.append(grammar)
        refused.append(automata._refused)
    assert max(refused) == SLOTS + 1
    assert refused.count(0) > 100
    assert second in entered
    assert first in entered[entered.index(second) :], "which is not full for ever either"
    assert not automata._doubted


def test_a_matcher_that_used_up_what_copies_share_is_made_anew_and_asked_again() -> None:
    compiled = compiler()
    grammar = compiled.compile(StructuredOutputs(json=LINE))
    pair = Pair(grammar, compiled, 2)
    ended = grammar.matcher.deep_copy()
    ended.consume_tokens([5, 5, 5])
    assert ended.is_error()
    grammar._origins[0].matcher = ended
    drafted = pair.walk([[], []], [0, 0], [Proposals([], 0, DraftSource.MASK)] * 2, MOST)
    assert drafted.outcome.tolist() == [DONE, DONE]
    assert not pair.automata._doubted
    assert not grammar.matcher.is_error()


def test_a_sequence_that_is_given_up_goes_on_with_its_last_drafts() -> None:
    """A matcher in its place has the same drafts, so that it takes in what a forward commits of them."""
    compiled = compiler()
    pair = Pair(compiled.compile(StructuredOutputs(json=LINE)), compiled, 1)
    (slot,), (matcher,) = pair.slots.tolist(), pair.matchers
    matcher.draft(Proposals([], 0, DraftSource.MASK), most=MOST)
    pair.walk([[]], [0], [Proposals([], 0, DraftSource.MASK)], MOST)
    assert matcher.drafts.tokens
    assert pair.automata.give_up(slot, 0).drafts.tokens == matcher.drafts.tokens
