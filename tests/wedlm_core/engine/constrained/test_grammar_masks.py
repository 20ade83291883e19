"""The allowed tokens of a forward's states: those of a matcher that is run again, whoever computes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLExecutor

from testing.engine.grammar_oracle import allowed_bits, allowed_tokens, grammar_masks
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.engine.constrained.matching import AN_END, Constraint, Proposals
from wedlm_core.grammar import Grammar, GrammarCompiler
from wedlm_core.model.sources import resolve
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

VOCABULARY = 1024
WANTED = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
ENDS = (2, 0)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("tiny"))


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer().to_json(), VOCABULARY, ENDS, origins=2)


def bits_of(tokens: list[int]) -> np.ndarray:
    """Bool ``[V]``, which tokens these are."""
    return np.isin(np.arange(VOCABULARY), tokens)


def outputs(grammar: Grammar, rng: random.Random) -> Iterator[tuple[Constraint, list[int]]]:
    """A sequence's constraint with new drafts, again and again, and its commits; proposals are often right."""
    constraint, output = Constraint(grammar), list[int]()
    for _ in range(8):
        likely, offered = list(output), list[int]()
        while len(offered) < 6 and not set(likely) & set(ENDS):
            likely.append(rng.choice(allowed_tokens(grammar, likely)))
            offered.append(likely[-1] if rng.random() < 0.9 else rng.randrange(900))
        drafts = constraint.draft(
            Proposals(tokens=offered, most=len(offered), source=DraftSource.MASK), most=rng.choice((0, 1, 3, 9))
        )
        yield constraint, output
        taken = list(drafts.tokens[: rng.randrange(len(drafts.tokens) + 1)])  # later tokens were refused
        if not set(taken) & set(ENDS):
            taken.append(rng.choice(allowed_tokens(grammar, output + taken)))
        assert constraint.accept(taken) is None
        output = output + taken
        if set(output) & set(ENDS):
            return


@pytest.mark.parametrize("name", list(WANTED)[::2])
def test_the_bits_are_those_of_a_matcher_that_is_run_anew(name: str) -> None:
    grammar, executor = compiler().compile(WANTED[name]), LLExecutor(2)
    for constraint, output in outputs(grammar, random.Random(name)):
        tokens = constraint.drafts.tokens
        states = range(len(tokens) + 1)
        expected = [bits_of(allowed_tokens(grammar, [*output, *tokens[:place]])) for place in states]
        for threads in (None, executor):
            lines = grammar_masks([(0, constraint, 7)], 1, VOCABULARY, ENDS)
            lines.fill(threads)
            allowed = lines.allowed(torch.device("cpu"))
            facts = [one.tolist() for one in (allowed.first_S, allowed.count_S, allowed.position_S)]
            assert facts == [[0], [len(tokens) + 1], [7]]
            np.testing.assert_array_equal(allowed_bits(lines), np.stack(expected))
            assert len(lines.bits_UW) <= len(constraint.unknown) + 1, "no line is made for forced tokens"


def test_lines_of_sequences_stand_behind_each_other_and_equal_those_of_each_alone() -> None:
    rng = random.Random(3)
    found = [next(outputs(compiler().compile(WANTED[name]), rng))[0] for name in list(WANTED)[:12]]
    alone = []
    for constraint in found:
        lines = grammar_masks([(0, constraint, 0)], 1, VOCABULARY, ENDS)
        lines.fill(None)
        alone.append(allowed_bits(lines))
    for threads in (None, LLExecutor(2)):
        lines = grammar_masks([(slot, one, 0) for slot, one in enumerate(found)], len(found), VOCABULARY, ENDS)
        lines.fill(threads)
        np.testing.assert_array_equal(allowed_bits(lines), np.concatenate(alone))


class _Broken:
    """Threads whose library raises."""

    def unsafe_compute_mask_ptr(self, *given: Any) -> None:
        raise ValueError("it is broken")

    unsafe_compute_mask_ptr_with_draft_token = unsafe_compute_mask_ptr


def test_where_threads_raise_each_sequence_asks_a_new_matcher() -> None:
    found = [next(outputs(compiler().compile(WANTED[name]), random.Random(name)))[0] for name in list(WANTED)[:12]]
    places = [(slot, one, 0) for slot, one in enumerate(found)]
    expected, lines = (grammar_masks(places, len(found), VOCABULARY, ENDS) for _ in range(2))
    expected.fill(None)
    lines.fill(_Broken())
    np.testing.assert_array_equal(allowed_bits(lines), allowed_bits(expected))
    assert not any(one.failure for one in found)


@pytest.mark.parametrize("threads", [1, 2])
def test_beside_a_device_they_are_computed_in_the_background(threads: int) -> None:
    found = [next(outputs(compiler().compile(WANTED[name]), random.Random(name)))[0] for name in list(WANTED)[:8]]
    places = [(slot, one, 0) for slot, one in enumerate(found)]
    at_once = grammar_masks(places, len(found), VOCABULARY, ENDS)
    at_once.fill(None)
    waiter, executor = ThreadPoolExecutor(1), LLExecutor(threads)
    several = [grammar_masks(places, len(found), VOCABULARY, ENDS) for _ in range(3)]
    for filled in [waiter.submit(masks.fill, executor) for masks in several]:
        filled.result()
    for masks in several:
        np.testing.assert_array_equal(allowed_bits(masks), allowed_bits(at_once))


def test_a_matcher_is_not_asked_for_what_is_known() -> None:
    constraint = Constraint(compiler().compile(StructuredOutputs(choice=["only this text may come"])))
    constraint.draft(Proposals(tokens=(), most=0, source=DraftSource.MASK), most=30)
    assert constraint.drafts.ends
    assert constraint.drafts.states[-1] == AN_END
    assert constraint.unknown == ()


def test_constraints_take_turns_among_as_many_matchers_as_threads_ask() -> None:
    made = list[Any]()
    first = compiler().compile(StructuredOutputs(regex="[ab]{3}")).matcher

    def make() -> Any:
        made.append(first.deep_copy())
        return made[-1]

    grammar = Grammar(make, ENDS, 3)
    assert len(made) == 1, "one sequence alone compiles one"
    constraints = [Constraint(grammar) for _ in range(7)]
    assert len(made) == 3
    assert [constraints.index(one) for one in constraints if one._origin is made[0]] == [0, 3, 6]
